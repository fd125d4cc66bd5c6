//! What is kept of a VM to tell how it goes.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use probe_engine::probe::ProbeCounts;
use vmprobe_proto::v1;

use super::rates::{PerSecond, Rates};

/// What a VM keeps for those who watch it.
#[derive(Debug, Default)]
pub struct Watched {
    rates: Mutex<Rates>,
    sums: Mutex<Sums>,
    started: OnceLock<Instant>,
    ended: OnceLock<Instant>,
}

impl Watched {
    /// The guest is about to run.
    pub fn start(&self) {
        self.started.get_or_init(Instant::now);
    }

    /// The guest has ended.
    pub fn end(&self) {
        self.ended.get_or_init(Instant::now);
    }

    /// These probes are no more.
    pub fn remove(&self, probes: &[v1::Probe]) {
        let mut sums = self.sums.lock();
        for probe in probes {
            let counts = [probe.hits, probe.missed, probe.ended];
            sums.removed = added(sums.removed, counts);
        }
    }

    /// Takes a look, and tells the rates.
    pub fn look(&self, exits: u64, probes: &[ProbeCounts]) -> PerSecond {
        let mut rates = self.rates.lock();
        // Behind the lock, so that looks are in the order of time.
        rates.look(Instant::now(), exits, probes)
    }

    /// What all probes have counted, with these.
    pub fn sums(&self, probes: &[ProbeCounts]) -> Counts {
        self.sums.lock().with(probes)
    }

    /// How long the guest has run.
    pub fn uptime(&self) -> Duration {
        let until = self.ended.get().copied().unwrap_or_else(Instant::now);
        let since = self.started.get();
        since.map_or(Duration::ZERO, |since| {
            until.saturating_duration_since(*since)
        })
    }
}

/// Hits, calls that were missed, and calls that have ended inside.
pub type Counts = [u64; 3];

fn added(sums: Counts, more: Counts) -> Counts {
    let [hits, missed, ended] = more;
    [sums[0] + hits, sums[1] + missed, sums[2] + ended]
}

/// What all probes have counted together, those that are no more as well.
#[derive(Debug, Default)]
struct Sums {
    removed: Counts,
    told: Counts,
}

impl Sums {
    /// The sums, with these probes. They never go down: probes that are being removed are missing for a moment.
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
        // The second is on its way out.
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
