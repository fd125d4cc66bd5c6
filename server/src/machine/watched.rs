//! What the server keeps of a VM for its counts and rates.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use probe_engine::probe::ProbeCounts;
use vmprobe_proto::v1;

use super::rates::{PerSecond, Rates};

/// The times and counts that a VM's monitoring needs.
#[derive(Debug, Default)]
pub struct Watched {
    rates: Mutex<Rates>,
    sums: Mutex<Sums>,
    started: OnceLock<Instant>,
    ended: OnceLock<Instant>,
}

impl Watched {
    /// Notes that the guest is about to run.
    pub fn start(&self) {
        self.started.get_or_init(Instant::now);
    }

    /// Notes that the guest has ended.
    pub fn end(&self) {
        self.ended.get_or_init(Instant::now);
    }

    /// These probes have been removed.
    pub fn remove(&self, probes: &[v1::Probe]) {
        let mut sums = self.sums.lock();
        for probe in probes {
            let counts = [probe.hits, probe.missed, probe.ended];
            sums.removed = added(sums.removed, counts);
        }
    }

    /// Takes a look, and returns the rates.
    pub fn look(&self, exits: u64, probes: &[ProbeCounts]) -> PerSecond {
        let mut rates = self.rates.lock();
        // The time is taken under the lock, so that looks are in the order of time.
        rates.look(Instant::now(), exits, probes)
    }

    /// Returns the sums of what all probes have counted, with these.
    pub fn sums(&self, probes: &[ProbeCounts]) -> Counts {
        self.sums.lock().with(probes)
    }

    /// Returns how long the guest has run.
    pub fn uptime(&self) -> Duration {
        let until = self.ended.get().copied().unwrap_or_else(Instant::now);
        let since = self.started.get();
        since.map_or(Duration::ZERO, |since| {
            until.saturating_duration_since(*since)
        })
    }
}

/// Hits, missed calls, and calls that have ended inside the function.
pub type Counts = [u64; 3];

fn added(sums: Counts, more: Counts) -> Counts {
    let [hits, missed, ended] = more;
    [sums[0] + hits, sums[1] + missed, sums[2] + ended]
}

/// The counts of all probes together, with those that have been removed.
#[derive(Debug, Default)]
struct Sums {
    removed: Counts,
    told: Counts,
}

impl Sums {
    /// Returns the sums with these probes. The sums never go down, even while a probe that is being removed is in
    /// neither part.
    fn with(&mut self, probes: &[ProbeCounts]) -> Counts {
        let all = probes.iter().fold(self.removed, |sums, probe| {
            added(sums, [probe.hits, probe.missed, probe.ended])
        });
        for (told, now) in self.told.iter_mut().zip(all) {
            *told = now.max(*told);
        }
        self.told
    }
}

#[cfg(test)]
mod tests {
    use probe_engine::probe::ProbeId;

    use super::*;

    #[test]
    fn sums_have_what_removed_probes_have_counted_and_never_go_down() {
        let watched = Watched::default();
        let counts = |id, hits| ProbeCounts {
            id: ProbeId(id),
            hits,
            missed: 1,
            ended: 0,
        };
        let told = |probes: &[ProbeCounts]| watched.sums(probes);
        assert_eq!(told(&[counts(1, 10), counts(2, 5)]), [15, 2, 0]);
        // The second probe is being removed.
        assert_eq!(told(&[counts(1, 10)]), [15, 2, 0]);
        watched.remove(&[v1::Probe {
            id: 2,
            hits: 6,
            missed: 1,
            ..v1::Probe::default()
        }]);
        assert_eq!(told(&[counts(1, 10)]), [16, 2, 0]);
        assert_eq!(told(&[counts(1, 11), counts(3, 1)]), [18, 3, 0]);
    }

    #[test]
    fn a_guest_is_up_from_its_start_to_its_end() {
        let watched = Watched::default();
        assert_eq!(watched.uptime(), Duration::ZERO);
        watched.start();
        watched.end();
        let up = watched.uptime();
        watched.start();
        watched.end();
        assert_eq!(watched.uptime(), up);
    }
}
