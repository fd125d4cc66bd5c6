//! The guest's own kprobes, as its tracing has them.

use std::io;

use serde_json::{Map, Value, json};

use super::{step, threads, tracefs};
use crate::plan::Plan;

/// Puts a kprobe at each place, and a kretprobe at each that is a function's entry; makes the calls;
/// reports hits, misses and trace lines of each. A place that the kernel refuses is reported with
/// the error instead.
///
/// Steps: `armed`, `called`.
pub fn run(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    let mut names = Vec::new();
    let mut refused = Map::new();
    for (index, place) in plan.places().iter().enumerate() {
        let mut kinds = vec!["p"];
        if !place.contains('+') {
            kinds.push("r");
        }
        for kind in kinds {
            let name = format!("{kind}{index}");
            match tracefs::append("kprobe_events", &format!("{kind}:mine/{name} {place}")) {
                Ok(()) => names.push(name),
                Err(error) => drop(refused.insert(name, error.to_string().into())),
            }
        }
    }
    // One by one, so that the refusal of one event doesn't affect the others.
    names.retain(|name| {
        let armed = tracefs::write(&format!("events/mine/{name}/enable"), "1");
        let failed = armed.err().map(|error| error.to_string());
        if let Some(error) = &failed {
            refused.insert(name.clone(), error.clone().into());
        }
        failed.is_none()
    });
    step(
        plan,
        "armed",
        json!({ "events": names, "refused": refused }),
    )?;
    threads::often(plan.call, plan.count);
    step(plan, "called", json!({ "calls": plan.count }))?;

    let profile = tracefs::read("kprobe_profile")?;
    let lines = tracefs::lines()?;
    let mut events = Map::new();
    for name in &names {
        let (hits, missed) = counts(&profile, name)
            .ok_or_else(|| io::Error::other(format!("kprobe_profile has no {name}")))?;
        let mark = format!(": {name}: ");
        let traced = lines.iter().filter(|line| line.contains(&mark)).count();
        let counts = json!({ "hits": hits, "missed": missed, "traced": traced });
        events.insert(name.clone(), counts);
        tracefs::write(&format!("events/mine/{name}/enable"), "0")?;
    }
    tracefs::write("kprobe_events", "")?;
    tracefs::clear()?;
    Ok(json!({ "calls": plan.count, "events": events, "refused": refused }))
}

/// Returns hits and misses of an event from the profile: a line `name hits misses` each.
pub(in crate::workload) fn counts(profile: &str, name: &str) -> Option<(u64, u64)> {
    profile.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let own = words.next()? == name;
        let counts = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        own.then_some(counts)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_events_counts_are_found_by_its_whole_name() {
        let profile = "  p10          5      0\n  p1           7      2\n";
        assert_eq!(counts(profile, "p1"), Some((7, 2)));
        assert_eq!(counts(profile, "p"), None);
    }
}
