//! What calls take, with and without the guest's own probe.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{threads, tracefs};
use crate::machine;
use crate::plan::Plan;

/// What the kernel tells of its kprobes.
const KPROBES: &str = "/sys/kernel/debug/kprobes/list";
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
    tracefs::append("kprobe_events", &format!("p:mine/{EVENT} {}", plan.at))?;
    tracefs::write(&format!("events/mine/{EVENT}/enable"), "1")?;
    let optimized = is_optimized();
    let times = optimized.is_ok().then(|| rounds(plan));
    tracefs::write(&format!("events/mine/{EVENT}/enable"), "0")?;
    tracefs::write("kprobe_events", "")?;
    tracefs::clear()?;
    optimized?;
    Ok(json!({ "ns": times, "calls": plan.count }))
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

/// Waits until the kernel has made a jump of its only kprobe.
pub(super) fn is_optimized() -> io::Result<()> {
    if !Path::new(KPROBES).exists() {
        machine::mount(c"debugfs", c"/sys/kernel/debug")?;
    }
    let start = Instant::now();
    loop {
        let list = fs::read_to_string(KPROBES)?;
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
