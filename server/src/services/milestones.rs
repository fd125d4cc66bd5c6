//! The progress of a stream of events.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};
use vmprobe_proto::v1::Progress;

/// Reports a stream's progress from time to time: at each tick, the guest's counter at the tick before. The records of
/// earlier hits have been read from the guest by now, which takes some milliseconds (`machine::read_rings`).
#[derive(Debug)]
pub struct Milestones {
    ticks: Option<Interval>,
    /// The guest's counter at the last tick.
    last: Option<u64>,
    /// The next report's counter, and how many events have to be sent before it.
    next: Option<(u64, usize)>,
}

impl Milestones {
    /// Makes one that ticks every `every`, or never.
    pub fn new(every: Option<Duration>) -> Self {
        let ticks = every.map(|every| {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        Self {
            ticks,
            last: None,
            next: None,
        }
    }

    /// Waits for the next tick.
    pub async fn tick(&mut self) {
        match &mut self.ticks {
            Some(ticks) => drop(ticks.tick().await),
            None => std::future::pending().await,
        }
    }

    /// Notes the guest's counter at a tick, and that `waiting` events are still to be sent.
    pub fn set(&mut self, counter: Option<u64>, waiting: usize) {
        let before = std::mem::replace(&mut self.last, counter);
        if self.next.is_none() {
            self.next = before.map(|tsc| (tsc, waiting));
        }
    }

    /// Counts events that are sent.
    pub fn sent(&mut self, count: usize) {
        if let Some((_, left)) = &mut self.next {
            *left = left.saturating_sub(count);
        }
    }

    /// Returns the report that is due now.
    pub fn reached(&mut self) -> Option<Progress> {
        let (tsc, _) = self.next.take_if(|(_, left)| *left == 0)?;
        Some(Progress { tsc })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_told_when_all_events_before_it_are_sent() {
        let mut milestones = Milestones::new(None);
        milestones.set(Some(10), 5);
        assert_eq!(milestones.reached(), None);
        milestones.set(Some(20), 3);
        milestones.sent(2);
        assert_eq!(milestones.reached(), None);
        // A tick before the last report is due doesn't change that report.
        milestones.set(Some(30), 100);
        milestones.sent(1);
        assert_eq!(milestones.reached(), Some(Progress { tsc: 10 }));
        assert_eq!(milestones.reached(), None);
        milestones.set(Some(40), 0);
        assert_eq!(milestones.reached(), Some(Progress { tsc: 30 }));
    }
}
