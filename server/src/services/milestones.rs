//! How far a stream of events has come.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};
use vmprobe_proto::v1::Progress;

/// Tells from time to time how far a stream has come: at each tick, where the guest's counter was at the tick before.
/// What was hit by then has been read from the guest meanwhile, which takes some milliseconds
/// (`machine::read_rings`).
#[derive(Debug)]
pub struct Milestones {
    ticks: Option<Interval>,
    /// The counter at the last tick.
    last: Option<u64>,
    /// What will be told when so many events more are sent.
    next: Option<(u64, usize)>,
}

impl Milestones {
    /// None if `every` isn't given.
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

    /// Notes where the guest's counter is at a tick, and that so many events are still to be sent.
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

    /// What there is to tell now.
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
        // A tick that comes before the last one's is told changes nothing of it.
        milestones.set(Some(30), 100);
        milestones.sent(1);
        assert_eq!(milestones.reached(), Some(Progress { tsc: 10 }));
        assert_eq!(milestones.reached(), None);
        milestones.set(Some(40), 0);
        assert_eq!(milestones.reached(), Some(Progress { tsc: 30 }));
    }
}
