//! Reading the records that detours have put into the guest's rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use probe_engine::engine::Drained;
use probe_engine::probe::Optimization;

use super::Machine;
use super::bell::Heard;

/// Between two looks into rings that get records, or from which events are held back.
const QUICK: Duration = Duration::from_millis(1);
/// Between two looks into rings that get no records.
const SLOW: Duration = Duration::from_millis(16);
/// After this many slow looks that find nothing (about a second), the reader checks if there are jumps at all. A task
/// that was preempted in a detour writes its record when it runs again, even if the jump is gone by then.
const IDLE_LOOKS: u32 = 64;

/// How long to wait before the next look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    wait: Duration,
    /// Slow looks in a row that found nothing.
    idle: u32,
}

impl Pace {
    const QUICK: Self = Self {
        wait: QUICK,
        idle: 0,
    };

    fn after(self, found: &Drained) -> Self {
        if found.records > 0 || found.held > 0 {
            return Self::QUICK;
        }
        let idle = if self.wait == SLOW { self.idle + 1 } else { 0 };
        Self {
            wait: (self.wait * 2).min(SLOW),
            idle,
        }
    }

    fn is_idle(self) -> bool {
        self.idle >= IDLE_LOOKS
    }
}

impl Machine {
    /// Reports all records that detours have put into the rings so far.
    pub(super) fn drain(&self) -> Drained {
        let found = self.look();
        if found.held > 0 {
            // Only the next look reports those, so there has to be one.
            self.reader.bell.ring();
        }
        found
    }

    /// Does as [`Self::drain`], and holds no event back: for a guest that stands still or has ended.
    pub(super) fn drain_all(&self) {
        let _alone = self.reader.reading.lock();
        self.engine.drain_all(&self.memory);
    }

    /// Does as [`Self::drain_all`], for a guest that has ended: a record that isn't complete by now never will be.
    pub(super) fn drain_ended(&self) {
        let _alone = self.reader.reading.lock();
        self.engine.drain_ended(&self.memory);
    }

    /// Reads what the rings have. Called before a stop too, so that little is left to read while the guest stands
    /// still.
    pub(super) fn look(&self) -> Drained {
        let _alone = self.reader.reading.lock();
        self.engine.drain(&self.memory)
    }

    /// Reads the rings as often as they get records, and sleeps while there are no jumps. Returns when the guest has
    /// ended.
    pub(super) fn read_rings(self: &Arc<Self>) {
        let mut pace: Option<Pace> = None;
        loop {
            let heard = self.reader.bell.wait(pace.map(|pace| pace.wait));
            pace = match heard {
                Heard::End => return,
                Heard::Ring => Some(Pace::QUICK),
                Heard::Nothing => pace,
            };
            let found = self.look();
            if self.engine.is_held_up() {
                self.recover_rings();
            }
            pace = pace.map(|pace| pace.after(&found));
            if let Some(idle) = pace
                && idle.is_idle()
            {
                pace = self.may_fill().then_some(Pace { idle: 0, ..idle });
            }
        }
    }

    /// Skips records that hold up their rings because the task that was writing them has died.
    fn recover_rings(&self) {
        let _alone = self.changing.lock();
        match self.stopped(|stopped| self.engine.recover_rings(stopped)) {
            Ok(0) => {}
            Ok(lost) => {
                let vm = self.name();
                tracing::warn!(vm, lost, "gave up records that nobody is left to finish");
            }
            Err(error) => {
                let vm = self.name();
                tracing::error!(vm, "can't look who is in a detour: {error}");
            }
        }
    }

    /// Returns true if there may be jumps. Looks for them only if probes have been changed.
    fn may_fill(&self) -> bool {
        if !self.reader.changed.swap(false, Ordering::Relaxed) {
            return true;
        }
        let mut probes = self.engine.list().into_iter();
        probes.any(|probe| probe.optimization == Optimization::Optimized)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paces(found: impl Iterator<Item = Drained>) -> Vec<Pace> {
        let paces = found.scan(Pace::QUICK, |pace, found| {
            *pace = pace.after(&found);
            Some(*pace)
        });
        paces.collect()
    }

    #[test]
    fn rings_that_fill_are_read_every_millisecond_others_ever_more_slowly() {
        let nothing = Drained::default();
        let records = Drained {
            records: 3,
            ..nothing
        };
        let held = Drained { held: 1, ..nothing };
        let found = [records, nothing, nothing, held, nothing, nothing, nothing];
        let paces = paces(found.into_iter().chain([nothing; 3]));
        let waits: Vec<u128> = paces.iter().map(|pace| pace.wait.as_millis()).collect();
        assert_eq!(waits, [1, 2, 4, 1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn a_reader_is_idle_after_many_slow_looks() {
        let looks = paces(std::iter::repeat_n(Drained::default(), 100));
        let first = looks.iter().position(|pace| pace.is_idle());
        assert_eq!(first, Some(4 + 63));
        let total: Duration = looks[..first.unwrap()].iter().map(|pace| pace.wait).sum();
        assert!(total > Duration::from_secs(1), "{total:?}");
    }
}
