//! The probes of a job's expectations, and whether these are met.

use std::collections::HashMap;

use vmprobe_client::Client;
use vmprobe_client::v1::Probe;

use super::event_watch::Seen;
use super::expectation::{Expectation, Kind};
use super::outcome::{Called, Check, Coverage};
use crate::failure::Failure;
use crate::tracing::{Definition, name_all, register_as_asked};

/// Probes of a guest that has not begun to run.
#[derive(Debug)]
pub struct Planted<'j> {
    /// Each expectation with the ids of its probes.
    expectations: Vec<(&'j Expectation, Vec<u64>)>,
    /// All of the probes.
    pub probes: Vec<Probe>,
}

impl<'j> Planted<'j> {
    /// Plants the probes of all expectations.
    ///
    /// # Errors
    /// The server refuses one.
    pub async fn plant(
        client: &Client,
        vm: &str,
        expectations: &'j [Expectation],
    ) -> Result<Self, Failure> {
        let mut planted = Self {
            expectations: Vec::new(),
            probes: Vec::new(),
        };
        // Several expectations may be about one function.
        let there = client.list_probes(vm).await?;
        let definitions = expectations.iter().map(|it| it.definition.clone());
        let mut definitions: Vec<Definition> = definitions.collect();
        name_all(&mut definitions, there.into_iter().map(|probe| probe.name));
        for (expectation, definition) in expectations.iter().zip(&definitions) {
            let definition = std::slice::from_ref(definition);
            let registered = register_as_asked(client, vm, definition).await?.probes;
            let ids = registered.iter().map(|probe| probe.id).collect();
            planted.expectations.push((expectation, ids));
            planted.probes.extend(registered);
        }
        Ok(planted)
    }

    /// Judges the expectations by the probes as they were at the end, and by their events.
    pub fn judge(&self, last: &[Probe], seen: &Seen) -> (Vec<Check>, Vec<Coverage>) {
        let by_id: HashMap<u64, &Probe> = last.iter().map(|probe| (probe.id, probe)).collect();
        let (mut checks, mut coverage) = (Vec::new(), Vec::new());
        for (expectation, ids) in &self.expectations {
            let probes: Vec<&Probe> = ids.iter().filter_map(|id| by_id.get(id).copied()).collect();
            let (passed, detail) = match expectation.kind {
                Kind::AtLeast(hits) => at_least(&probes, hits),
                Kind::None => none(&probes),
                Kind::MaxLatency(limit) => max_latency(ids, seen, limit),
                Kind::Coverage(percent) => {
                    let found = covered(&expectation.definition.text, &probes);
                    let judged = enough(&found, percent);
                    coverage.push(found);
                    judged
                }
            };
            checks.push(Check {
                name: expectation.name.clone(),
                passed,
                detail,
            });
        }
        (checks, coverage)
    }
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

fn at_least(probes: &[&Probe], wanted: u64) -> (bool, String) {
    let hits: u64 = probes.iter().map(|probe| probe.hits).sum();
    let passed = hits >= wanted;
    let detail = match passed {
        true => format!("hit {}", times(hits)),
        false => format!("hit {}, at least {wanted} wanted", times(hits)),
    };
    (passed, detail)
}

/// Checks that there was no hit. A missed hit counts as well.
fn none(probes: &[&Probe]) -> (bool, String) {
    let hits: u64 = probes.iter().map(|probe| probe.hits + probe.missed).sum();
    (hits == 0, format!("hit {}", times(hits)))
}

fn max_latency(ids: &[u64], seen: &Seen, limit: std::time::Duration) -> (bool, String) {
    let calls: Vec<_> = ids.iter().filter_map(|id| seen.calls.get(id)).collect();
    let count: u64 = calls.iter().map(|calls| calls.count).sum();
    let longest = calls.iter().map(|calls| calls.longest).max();
    let longest = longest.unwrap_or_default();
    let mut detail = match count {
        0 => "no call".to_owned(),
        1 => format!("one call, {longest:.1?}"),
        count => format!("{count} calls, the longest {longest:.1?}"),
    };
    if seen.lost > 0 {
        detail += &format!(
            "; {} events were lost, so others may have taken longer",
            seen.lost
        );
    }
    (longest <= limit && seen.lost == 0, detail)
}

fn covered(definition: &str, probes: &[&Probe]) -> Coverage {
    let called = |probe: &&Probe| Called {
        function: match &*probe.module {
            "" => probe.symbol.clone(),
            module => format!("{module}:{}", probe.symbol),
        },
        hits: probe.hits,
    };
    let mut functions: Vec<Called> = probes.iter().map(called).collect();
    functions.sort_by(|one, other| one.function.cmp(&other.function));
    let words = definition.split(' ').nth(1).unwrap_or(definition);
    Coverage {
        pattern: words.to_owned(),
        functions,
    }
}

fn enough(found: &Coverage, percent: u32) -> (bool, String) {
    let (reached, all) = (found.reached(), found.functions.len());
    let passed = reached * 100 >= all * percent as usize;
    let mut detail = format!("{reached} of {all} functions called");
    if !passed {
        detail += &format!(", {percent} % wanted");
    }
    (passed, detail)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::event_watch::Calls;
    use super::*;

    fn probe(symbol: &str, hits: u64, missed: u64) -> Probe {
        Probe {
            symbol: symbol.to_owned(),
            hits,
            missed,
            ..Default::default()
        }
    }

    #[test]
    fn hits_are_told_and_wanted_ones_too_where_they_lack() {
        let (one, two) = (probe("f", 1, 0), probe("g", 2, 0));
        assert_eq!(at_least(&[&one, &two], 3), (true, "hit 3 times".into()));
        let lacking = "hit once, at least 2 wanted";
        assert_eq!(at_least(&[&one], 2), (false, lacking.into()));
    }

    #[test]
    fn a_missed_hit_is_one_that_was_not_to_be() {
        assert_eq!(none(&[&probe("f", 0, 0)]), (true, "hit 0 times".into()));
        assert_eq!(none(&[&probe("f", 0, 1)]), (false, "hit once".into()));
    }

    #[test]
    fn lost_events_leave_the_longest_call_open() {
        let ms = Duration::from_millis;
        let calls = Calls {
            count: 3,
            longest: ms(2),
        };
        let mut seen = Seen::default();
        seen.calls.insert(7, calls);
        assert!(max_latency(&[7], &seen, ms(2)).0);
        assert!(!max_latency(&[7], &seen, ms(1)).0);
        assert_eq!(max_latency(&[8], &seen, ms(1)), (true, "no call".into()));
        seen.lost = 1;
        let (passed, detail) = max_latency(&[7], &seen, ms(2));
        assert!(!passed && detail.contains("1 events were lost"), "{detail}");
    }

    #[test]
    fn a_share_of_the_functions_may_be_wanted() {
        let (one, two, three) = (probe("b", 1, 0), probe("a", 0, 0), probe("c", 9, 0));
        let found = covered("p * count", &[&one, &two, &three]);
        let names: Vec<_> = found.functions.iter().map(|it| &*it.function).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(found.pattern, "*");
        assert!(enough(&found, 66).0);
        let (passed, detail) = enough(&found, 67);
        assert_eq!(detail, "2 of 3 functions called, 67 % wanted");
        assert!(!passed);
    }
}
