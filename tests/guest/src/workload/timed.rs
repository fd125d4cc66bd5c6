//! The time of calls, with and without the guest's own probe.

use std::io;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{debugfs, threads, tracefs};
use crate::plan::Plan;

/// The kernel optimizes when all tasks have passed a quiescent state.
const PATIENCE: Duration = Duration::from_secs(120);
const EVENT: &str = "timed";

/// Times the calls; see [`crate::plan::Workload::Timed`].
pub fn run(plan: &Plan) -> io::Result<Value> {
    threads::pin_to(&[0])?;
    if plan.at.is_empty() {
        return Ok(json!({ "ns": rounds(plan), "calls": plan.count }));
    }
    tracefs::ready()?;
    // The event's arguments follow the place, and `stacktrace` is last if each event is to have a stack.
    let (definition, stack) = match plan.at.strip_suffix(",stacktrace") {
        Some(definition) => (definition, true),
        None => (plan.at.as_str(), false),
    };
    let definition = definition.replace(',', " ");
    tracefs::append("kprobe_events", &format!("p:mine/{EVENT} {definition}"))?;
    if stack {
        tracefs::append(&format!("events/mine/{EVENT}/trigger"), "stacktrace")?;
    }
    tracefs::write(&format!("events/mine/{EVENT}/enable"), "1")?;
    let optimized = is_optimized();
    let times = optimized.is_ok().then(|| rounds(plan));
    let counts = counts()?;
    tracefs::write(&format!("events/mine/{EVENT}/enable"), "0")?;
    if stack {
        tracefs::append(&format!("events/mine/{EVENT}/trigger"), "!stacktrace")?;
    }
    tracefs::write("kprobe_events", "")?;
    tracefs::clear()?;
    optimized?;
    Ok(json!({ "ns": times, "calls": plan.count, "hits": counts[0], "missed": counts[1] }))
}

/// Hits and missed hits of the event, by the kernel's own count (`kprobe_profile`: the name, and these).
fn counts() -> io::Result<[u64; 2]> {
    let profile = tracefs::read("kprobe_profile")?;
    let numbers = profile.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_ours = words.next() == Some(EVENT);
        let mut number = || words.next()?.parse().ok();
        is_ours.then(|| Some([number()?, number()?]))?
    });
    numbers.ok_or_else(|| io::Error::other(format!("no counts of {EVENT} in {profile:?}")))
}

/// Nanoseconds of each round.
fn rounds(plan: &Plan) -> Vec<u64> {
    let round = |_| {
        let start = Instant::now();
        (0..plan.count).for_each(|_| {
            threads::make(plan.call);
        });
        u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    };
    (0..plan.rounds).map(round).collect()
}

/// Waits until the kernel has made its only kprobe a jump.
pub(super) fn is_optimized() -> io::Result<()> {
    let start = Instant::now();
    loop {
        let list = debugfs::read(debugfs::KPROBES)?;
        if list.contains("[OPTIMIZED]") {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other(format!(
                "the kernel has not optimized its kprobe: {list}"
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
