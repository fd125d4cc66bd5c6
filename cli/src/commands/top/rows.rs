//! The table of probes with their rates.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use vmprobe_client::v1::Probe;

use crate::render;

/// The probes at a moment.
#[derive(Debug, Default)]
pub struct Sample {
    probes: Vec<Probe>,
    /// The average latency of their calls since the sample before, in nanoseconds.
    latencies: HashMap<u64, u64>,
    at: Option<Instant>,
}

impl Sample {
    /// Makes a sample of the probes now.
    pub fn new(probes: &[Probe], latencies: HashMap<u64, u64>) -> Self {
        Self {
            probes: probes.to_vec(),
            latencies,
            at: Some(Instant::now()),
        }
    }

    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// Returns true if nothing was looked at yet.
    pub fn is_first(&self) -> bool {
        self.at.is_none()
    }

    /// Returns hits and exits of all probes a second.
    pub fn totals(&self, before: &Self) -> (u64, u64) {
        let time = self.since(before);
        let old = before.by_id();
        let all = self.probes.iter().map(|probe| grown(probe, &old));
        let (hits, exits) = all.fold((0_u64, 0_u64), |(hits, exits), more| {
            (hits.saturating_add(more.0), exits.saturating_add(more.1))
        });
        (per_second(hits, time), per_second(exits, time))
    }

    fn since(&self, before: &Self) -> Duration {
        match (self.at, before.at) {
            (Some(now), Some(then)) => now.saturating_duration_since(then),
            _ => Duration::ZERO,
        }
    }

    fn by_id(&self) -> HashMap<u64, &Probe> {
        self.probes.iter().map(|probe| (probe.id, probe)).collect()
    }
}

const HEADINGS: [&str; 9] = [
    "PROBE", "KIND", "HITS", "HITS/S", "MISSED", "EXITS/S", "JUMP", "LATENCY", "STATE",
];
const RIGHT: [usize; 5] = [2, 3, 4, 5, 7];

/// Returns a line for each probe under headings, the busiest first.
pub fn table(now: &Sample, before: &Sample) -> Vec<String> {
    rows(now, before, now.since(before))
}

/// Returns a JSON object for each probe, the busiest first: those of the table, with times in
/// nanoseconds.
pub fn json_lines(now: &Sample, before: &Sample) -> Vec<String> {
    let time = now.since(before);
    let value = |(probe, hits, exits): (&Probe, u64, u64)| {
        json!({
            "id": probe.id,
            "name": probe.name,
            "hits": probe.hits,
            "hits_per_second": per_second(hits, time),
            "missed": probe.missed,
            "exits_per_second": per_second(exits, time),
            "latency_ns": now.latencies.get(&probe.id),
            "state": render::probe_state(probe),
        })
    };
    let values = by_hits(now, before).into_iter().map(value);
    values.map(|value| value.to_string()).collect()
}

/// Returns the probes with their hits and exits between the samples, the busiest first.
fn by_hits<'a>(now: &'a Sample, before: &Sample) -> Vec<(&'a Probe, u64, u64)> {
    let old = before.by_id();
    let mut probes: Vec<(&Probe, u64, u64)> = now
        .probes
        .iter()
        .map(|probe| {
            let (hits, exits) = grown(probe, &old);
            (probe, hits, exits)
        })
        .collect();
    probes.sort_by_key(|(probe, hits, _)| std::cmp::Reverse((*hits, probe.hits)));
    probes
}

fn rows(now: &Sample, before: &Sample, time: Duration) -> Vec<String> {
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    rows.extend(
        by_hits(now, before)
            .into_iter()
            .map(|(probe, hits, exits)| {
                vec![
                    probe.name.clone(),
                    render::probe_kind(probe),
                    probe.hits.to_string(),
                    per_second(hits, time).to_string(),
                    probe.missed.to_string(),
                    per_second(exits, time).to_string(),
                    render::probe_jump(probe).to_owned(),
                    now.latencies
                        .get(&probe.id)
                        .map_or(String::new(), |ns| duration(*ns)),
                    render::probe_state(probe).to_owned(),
                ]
            }),
    );
    render::table(&rows, &RIGHT)
}

/// Returns hits and exits since the sample before; none of a probe that is new in it.
fn grown(probe: &Probe, old: &HashMap<u64, &Probe>) -> (u64, u64) {
    old.get(&probe.id).map_or((0, 0), |old| {
        (
            probe.hits.saturating_sub(old.hits),
            probe.exits.saturating_sub(old.exits),
        )
    })
}

/// Returns a rate, rounded to a whole number.
fn per_second(count: u64, time: Duration) -> u64 {
    let rate =
        (u128::from(count) * 1_000_000_000 + time.as_nanos() / 2).checked_div(time.as_nanos());
    u64::try_from(rate.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Returns a duration such as `512ns`, `1.5µs` or `33.6ms`.
fn duration(ns: u64) -> String {
    format!("{:.1?}", Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(id: u64, name: &str, hits: u64, exits: u64) -> Probe {
        Probe {
            id,
            name: name.into(),
            hits,
            exits,
            ..Default::default()
        }
    }

    #[test]
    fn the_busiest_probe_comes_first_with_its_rates() {
        let before = Sample::new(
            &[probe(1, "a", 10, 10), probe(2, "b", 0, 0)],
            HashMap::new(),
        );
        let probes = [
            probe(1, "a", 14, 12),
            probe(2, "b", 100, 0),
            probe(3, "new", 7, 7),
        ];
        let now = Sample::new(&probes, HashMap::from([(2, 1500)]));
        assert_eq!(
            rows(&now, &before, Duration::from_secs(2)),
            [
                "PROBE  KIND  HITS  HITS/S  MISSED  EXITS/S  JUMP  LATENCY  STATE",
                "b      p      100      50       0        0          1.5µs  unknown",
                "a      p       14       2       0        1                 unknown",
                "new    p        7       0       0        0                 unknown",
            ]
        );
    }

    #[test]
    fn rates_are_rounded_and_never_divide_by_nothing() {
        assert_eq!(per_second(3, Duration::from_secs(2)), 2);
        assert_eq!(per_second(1, Duration::from_secs(4)), 0);
        assert_eq!(per_second(5, Duration::ZERO), 0);
        assert_eq!(per_second(u64::MAX, Duration::from_nanos(1)), u64::MAX);
    }
}
