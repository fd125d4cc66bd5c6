//! The events of one probe that a client has received.

use std::time::Duration;

use tokio::time::timeout;
use vmprobe_client::{EventStream, Message};

use crate::test::{Failure, check, check_eq, wrong};

/// Longer than an event takes on any machine. It only ends a hanging soak: nothing waits for time.
const NET: Duration = Duration::from_secs(100);

/// Events and losses of one probe, whose `rbx` is the number of the guest's pass.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Passes between two hits; `None` if that isn't known, as the probe was disabled meanwhile.
    step: Option<u64>,
    last: Option<u64>,
    /// Events that came.
    pub events: u64,
    /// Events that were reported as lost.
    pub lost: u64,
}

impl Ledger {
    /// A ledger of a probe that is hit at each `step`th pass.
    pub fn each(step: u64) -> Self {
        Self {
            step: Some(step),
            ..Self::default()
        }
    }

    /// A ledger of a probe that is disabled and enabled.
    pub fn switched() -> Self {
        Self::default()
    }

    /// Events that came or were reported as lost.
    pub fn total(&self) -> u64 {
        self.events + self.lost
    }

    /// Takes the next batch of a stream. Checks that each event is of a later pass than the one before, and that the
    /// events missing between them are reported as lost.
    ///
    /// # Errors
    /// If it isn't so, or no batch comes.
    pub async fn next(&mut self, stream: &mut EventStream) -> Result<(), Failure> {
        let message = timeout(NET, stream.next()).await;
        let message = message.map_err(|_| wrong!("no event came within {NET:?}: {self:?}"))??;
        let Some(Message::Batch { lost, events }) = message else {
            return Err(wrong!("{message:?} instead of events: {self:?}"));
        };
        let mut missing = lost;
        for event in events {
            let pass = event.registers.map_or(0, |registers| registers.rbx);
            if let Some(last) = self.last {
                check!(pass > last, "pass {pass} behind {last}: {self:?}");
                if let Some(step) = self.step {
                    check_eq!(
                        pass - last,
                        step * (1 + missing),
                        "passes between two events, with {missing} lost"
                    );
                }
            }
            missing = 0;
            self.last = Some(pass);
            self.events += 1;
        }
        self.lost += lost;
        Ok(())
    }

    /// Takes batches until this many hits are reported or counted as lost.
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    pub async fn at_least(&mut self, stream: &mut EventStream, hits: u64) -> Result<(), Failure> {
        while self.total() < hits {
            self.next(stream).await?;
        }
        Ok(())
    }

    /// Takes batches until all hits of a removed probe are reported or counted as lost.
    ///
    /// # Errors
    /// If there are more than the probe has counted, and those of [`next`](Self::next).
    pub async fn settle(&mut self, stream: &mut EventStream, hits: u64) -> Result<(), Failure> {
        self.at_least(stream, hits).await?;
        check_eq!(
            self.total(),
            hits,
            "events and losses of a probe with {hits} hits"
        );
        Ok(())
    }
}
