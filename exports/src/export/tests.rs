use std::sync::Mutex;

use super::*;
use crate::samples;

/// Notes the times of records. Takes `most` of them, and then waits for ever or fails.
struct Noting {
    taken: Arc<Mutex<Vec<u64>>>,
    most: usize,
    fails: bool,
}

impl Noting {
    fn new(most: usize, fails: bool) -> (Self, Arc<Mutex<Vec<u64>>>) {
        let taken = Arc::<Mutex<Vec<u64>>>::default();
        let noted = Arc::clone(&taken);
        (Self { taken, most, fails }, noted)
    }
}

impl Sink for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    async fn take(&mut self, record: Arc<Record>) -> Result<(), SinkError> {
        let taken = self.taken.lock().unwrap().len();
        if taken == self.most && self.fails {
            return Err(SinkError("it is full".into()));
        }
        if taken == self.most {
            std::future::pending::<()>().await;
        }
        self.taken.lock().unwrap().push(record.unix_ns);
        Ok(())
    }

    async fn finish(self, _deadline: Instant) -> (u64, Result<(), SinkError>) {
        let taken = self.taken.lock().unwrap().len();
        (taken.try_into().unwrap(), Ok(()))
    }
}

#[tokio::test]
async fn every_sink_takes_every_record_in_its_order() {
    let mut export = Export::default();
    let (first, noted) = Noting::new(usize::MAX, false);
    let (second, noted_too) = Noting::new(usize::MAX, false);
    export.add(first);
    export.add(second);
    for time in 0..1000 {
        export.hand(samples::of("a", "b", time)).await.unwrap();
    }
    let outcomes = export.finish(Duration::from_secs(60)).await;
    let all: Vec<u64> = (0..1000).collect();
    assert_eq!(*noted.lock().unwrap(), all);
    assert_eq!(*noted_too.lock().unwrap(), all);
    for outcome in outcomes {
        assert_eq!((outcome.exported, outcome.failed), (1000, 0));
        assert!(outcome.error.is_none());
    }
}

#[tokio::test]
async fn a_sink_that_fails_is_named_and_what_it_was_handed_is_counted() {
    let mut export = Export::default();
    export.add(Noting::new(10, true).0);
    let mut handed = 0;
    let failed = loop {
        handed += 1;
        if let Err(name) = export.hand(samples::of("a", "b", 0)).await {
            break name;
        }
    };
    assert_eq!(failed, "noting");
    let [outcome] = &export.finish(Duration::from_secs(60)).await[..] else {
        panic!("one sink has one outcome");
    };
    assert_eq!((outcome.exported, outcome.failed), (10, handed - 10));
    assert_eq!(outcome.error.as_ref().unwrap().to_string(), "it is full");
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_waits_holds_back_records_and_is_left_at_the_deadline() {
    let mut export = Export::default();
    export.add(Noting::new(10, false).0);
    let mut handed = 0;
    // With the clock paused, time passes only when nothing else can happen.
    while tokio::time::timeout(
        Duration::from_secs(1),
        export.hand(samples::of("a", "b", 0)),
    )
    .await
    .is_ok()
    {
        handed += 1;
    }
    // The record that it holds while it waits, and those that wait behind it.
    assert_eq!(handed, 10 + 1 + WAITING);
    let outcomes = export.finish(Duration::from_secs(5)).await;
    assert_eq!(outcomes[0].exported, 10);
    // The record that found no room counts as well.
    assert_eq!(outcomes[0].failed, handed as u64 + 1 - 10);
}
