//! Events for a client that may be cut off: those that it may not have got are kept, so that it can go on from there.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::{Code, Status};
use vmprobe_proto::batch::EventBatch;

use crate::fanout::Subscription;
use crate::held::{Held, HeldTable};
use crate::status;

/// Bytes of events that are kept after they are sent: more than can be under way to a client, which is
/// [`STREAM_WINDOW`](crate::limits::STREAM_WINDOW), and some 2 MiB of the client's own.
const KEPT: usize = 8 << 20;

/// A subscription whose last batches are kept, each with its number, from 1.
#[derive(Debug)]
pub struct ResumableEvents {
    subscription: Subscription,
    /// The batches that were sent last, in their order. The last one has the number `sent`.
    kept: VecDeque<EventBatch>,
    /// Bytes of `kept`.
    bytes: usize,
    sent: u64,
    /// The number of the batch that the client gets next.
    next: u64,
}

impl ResumableEvents {
    fn new(subscription: Subscription) -> Self {
        Self {
            subscription,
            kept: VecDeque::new(),
            bytes: 0,
            sent: 0,
            next: 1,
        }
    }

    /// Makes the stream go on behind the batch of this number; 0 is before the first.
    ///
    /// # Errors
    /// `OUT_OF_RANGE` if batches behind it are no longer kept, or were never sent.
    pub fn go_on_behind(&mut self, batch: u64) -> Result<(), Status> {
        let first_kept = self.sent + 1 - self.kept.len() as u64;
        if batch > self.sent || batch + 1 < first_kept {
            let (sent, first) = (self.sent, first_kept);
            return Err(status::with_field(
                Code::OutOfRange,
                "resume.batch",
                format!(
                    "this stream can go on behind one of the batches {} to {sent}, and not behind {batch}: begin a new \
                     stream; what was missed is in the counts of the probes",
                    first - 1
                ),
            ));
        }
        self.next = batch + 1;
        Ok(())
    }

    /// Returns how many events wait to be sent, with those that are sent again.
    pub fn waiting(&self) -> usize {
        let again = usize::try_from(self.sent + 1 - self.next).unwrap_or(usize::MAX);
        let again = self.kept.iter().rev().take(again).map(EventBatch::len);
        again.sum::<usize>() + self.subscription.waiting()
    }

    /// Returns the next batch, or `None` when the VM has ended and all are sent.
    pub async fn next(&mut self) -> Option<EventBatch> {
        if self.next <= self.sent {
            let from_the_end = usize::try_from(self.sent - self.next).unwrap_or(usize::MAX);
            let again = self.kept.iter().rev().nth(from_the_end).cloned();
            self.next += 1;
            return again;
        }
        let mut batch = self.subscription.next().await?;
        self.sent += 1;
        self.next = self.sent + 1;
        batch.number = self.sent;
        self.bytes += batch.size();
        self.kept.push_back(batch.clone());
        while self.bytes > KEPT && self.kept.len() > 1 {
            let gone = self.kept.pop_front();
            self.bytes -= gone.map_or(0, |gone| gone.size());
        }
        Some(batch)
    }
}

/// The stream that sends these events holds the lock as long as it lasts.
type Shared = Arc<tokio::sync::Mutex<ResumableEvents>>;

/// All resumable streams of a VM.
#[derive(Debug, Default)]
pub struct ResumableStreams {
    table: Mutex<HeldTable<Shared>>,
}

impl ResumableStreams {
    /// Makes a new stream with these events.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if there are `most` already.
    pub fn add(
        &self,
        subscription: impl FnOnce() -> Subscription,
        most: usize,
    ) -> Result<(Held, Shared), Status> {
        let mut table = self.table.lock();
        let have = table.len();
        if have >= most {
            let why = format!(
                "this VM keeps events of {have} streams for when they break, as many as it takes: end some, wait until \
                 those of clients that were cut off have ended, or start vmprobed with a larger --max-streams"
            );
            return Err(status::exhausted_by("linger_ms", "--max-streams", why));
        }
        let events = ResumableEvents::new(subscription());
        let shared = Arc::new(tokio::sync::Mutex::new(events));
        Ok((table.add(Arc::clone(&shared))?, shared))
    }

    /// Takes the stream of this name. A client's stream that holds it ends.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is none of this name.
    pub fn take(&self, name: &str) -> Result<(Held, Shared), Status> {
        let mut table = self.table.lock();
        let held = table.take(name);
        let shared = table.get_mut(name).cloned();
        held.zip(shared).ok_or_else(|| {
            let why = "there is no such stream: its events are no longer kept; begin a new one, and see the counts of \
                       the probes for what was missed";
            status::with_field(Code::NotFound, "resume.stream", why)
        })
    }

    /// Removes a stream that was held, unless another client's stream holds it.
    pub fn end(&self, held: &Held) {
        self.table.lock().end(held);
    }
}

#[cfg(test)]
mod tests {
    use vmprobe_proto::v1::Event;

    use super::*;
    use crate::fanout::Fanout;

    fn publish(fanout: &Fanout, tscs: std::ops::Range<u64>, stack: usize) {
        for tsc in tscs {
            fanout.publish(&Event {
                tsc,
                stack: vec![u64::MAX; stack],
                ..Event::default()
            });
        }
    }

    fn events(fanout: &Arc<Fanout>) -> ResumableEvents {
        ResumableEvents::new(fanout.subscribe(vec![]))
    }

    /// Returns the number of the next batch, and the times of its events.
    async fn next(events: &mut ResumableEvents) -> Option<(u64, Vec<u64>)> {
        let batch = events.next().await?;
        let number = batch.number;
        let events = batch.into_events().unwrap();
        Some((number, events.iter().map(|event| event.tsc).collect()))
    }

    #[tokio::test]
    async fn a_client_that_comes_back_gets_what_is_behind_its_last_batch() {
        let fanout = Arc::new(Fanout::new(100));
        let mut events = events(&fanout);
        for at in 0..3 {
            publish(&fanout, at..at + 1, 0);
            assert_eq!(next(&mut events).await, Some((at + 1, vec![at])));
        }
        for behind in [0, 1, 3] {
            events.go_on_behind(behind).unwrap();
            for at in behind..3 {
                assert_eq!(next(&mut events).await, Some((at + 1, vec![at])));
            }
        }
        assert_eq!(events.waiting(), 0);
        publish(&fanout, 3..5, 0);
        assert_eq!(events.waiting(), 2);
        events.go_on_behind(2).unwrap();
        assert_eq!(events.waiting(), 3);
        fanout.end();
        assert_eq!(next(&mut events).await, Some((3, vec![2])));
        assert_eq!(next(&mut events).await, Some((4, vec![3, 4])));
        assert_eq!(next(&mut events).await, None);
        events.go_on_behind(3).unwrap();
        assert_eq!(next(&mut events).await, Some((4, vec![3, 4])));
        assert_eq!(next(&mut events).await, None);
    }

    #[tokio::test]
    async fn batches_that_are_no_longer_kept_or_never_were_are_refused() {
        const STACK: usize = 64 * 1024;
        let fanout = Arc::new(Fanout::new(100));
        let mut events = events(&fanout);
        let each = STACK * 8;
        let kept = (KEPT / each) as u64;
        for at in 0..kept + 5 {
            publish(&fanout, at..at + 1, STACK);
            next(&mut events).await.unwrap();
        }
        let sent = events.sent;
        for wrong in [0, 4, sent + 1, u64::MAX] {
            let refused = events.go_on_behind(wrong).unwrap_err();
            assert_eq!(refused.code(), Code::OutOfRange, "{wrong}");
            assert!(refused.message().contains(&format!(" to {sent}, ")));
        }
        let oldest = sent - events.kept.len() as u64;
        events.go_on_behind(oldest).unwrap();
        assert_eq!(next(&mut events).await.unwrap().0, oldest + 1);
        assert!(events.bytes <= KEPT);
    }
}
