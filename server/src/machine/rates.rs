//! Rates per second, from counts at two moments.

use std::time::{Duration, Instant};

use probe_engine::probe::{ProbeCounts, ProbeId};

/// If two looks are nearer to each other, the rates are those of the looks before.
const NEAR: Duration = Duration::from_secs(1);
/// If two looks are farther from each other, they give no rates, as these would say nothing of the
/// present.
const FAR: Duration = Duration::from_secs(60);

/// The counts at a moment.
#[derive(Debug)]
struct Look {
    at: Instant,
    exits: u64,
    /// The hits of each probe, by its number.
    hits: Vec<(ProbeId, u64)>,
}

/// The last two looks that are far enough from each other.
#[derive(Debug, Default)]
pub struct Rates {
    before: Option<Look>,
    last: Option<Look>,
}

/// Rates per second.
#[derive(Debug, Default)]
pub struct PerSecond {
    pub exits: Option<f64>,
    pub hits: Option<f64>,
    /// The rates of the given probes, in their order.
    pub of_probes: Vec<Option<f64>>,
}

impl Rates {
    /// Takes a look, and returns the rates. `probes` are in the order of their numbers.
    pub fn look(&mut self, now: Instant, exits: u64, probes: &[ProbeCounts]) -> PerSecond {
        let is_near = |look: &Look| now.saturating_duration_since(look.at) < NEAR;
        if !self.last.as_ref().is_some_and(is_near) {
            let hits = probes.iter().map(|probe| (probe.id, probe.hits)).collect();
            let look = Look {
                at: now,
                exits,
                hits,
            };
            self.before = self.last.replace(look);
        }
        let none = || PerSecond {
            of_probes: vec![None; probes.len()],
            ..PerSecond::default()
        };
        let (Some(before), Some(last)) = (&self.before, &self.last) else {
            return none();
        };
        let between = last.at.saturating_duration_since(before.at);
        if between >= FAR {
            return none();
        }
        let per_second = |more: u64| Some(more as f64 / between.as_secs_f64());
        let of_probes = probes.iter().map(|probe| {
            // If the probe came between the two looks, all its hits are from that time.
            let more = last.hits_of(probe.id)? - before.hits_of(probe.id).unwrap_or(0);
            per_second(more)
        });
        let of_probes: Vec<_> = of_probes.collect();
        PerSecond {
            exits: per_second(last.exits.saturating_sub(before.exits)),
            hits: Some(of_probes.iter().flatten().sum()),
            of_probes,
        }
    }
}

impl Look {
    fn hits_of(&self, probe: ProbeId) -> Option<u64> {
        let found = self.hits.binary_search_by_key(&probe, |(id, _)| *id);
        found.ok().map(|at| self.hits[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(id: u64, hits: u64) -> ProbeCounts {
        ProbeCounts {
            id: ProbeId(id),
            hits,
            missed: 0,
            ended: 0,
        }
    }

    #[test]
    fn rates_are_those_between_the_last_two_looks_that_are_a_second_apart() {
        let mut rates = Rates::default();
        let begin = Instant::now();
        let after = |tenths: u64| begin + Duration::from_millis(tenths * 100);
        let first = rates.look(begin, 100, &[probe(1, 10), probe(2, 0)]);
        assert_eq!((first.exits, first.hits), (None, None));
        assert_eq!(first.of_probes, [None, None]);

        let near = rates.look(after(5), 200, &[probe(1, 20), probe(2, 0)]);
        assert_eq!(near.exits, None);

        // The first probe is gone, and another one has come.
        let second = rates.look(after(20), 500, &[probe(2, 8), probe(3, 2)]);
        assert_eq!((second.exits, second.hits), (Some(200.0), Some(5.0)));
        assert_eq!(second.of_probes, [Some(4.0), Some(1.0)]);

        let near = rates.look(after(25), 900, &[probe(2, 80), probe(3, 20), probe(4, 1)]);
        assert_eq!((near.exits, near.hits), (Some(200.0), Some(5.0)));
        assert_eq!(near.of_probes, [Some(4.0), Some(1.0), None]);

        let third = rates.look(after(30), 500, &[probe(2, 8)]);
        assert_eq!((third.exits, third.hits), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn looks_a_minute_apart_tell_no_rate() {
        let mut rates = Rates::default();
        let begin = Instant::now();
        rates.look(begin, 0, &[probe(1, 0)]);
        let late = rates.look(begin + FAR, 60, &[probe(1, 60)]);
        assert_eq!((late.exits, late.hits), (None, None));
        assert_eq!(late.of_probes, [None]);
        let soon = rates.look(begin + FAR + NEAR, 61, &[probe(1, 62)]);
        assert_eq!((soon.exits, soon.hits), (Some(1.0), Some(2.0)));
    }
}
