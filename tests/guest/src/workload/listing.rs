//! How the kernel lists kprobes of its own.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::tracefs;
use crate::machine;
use crate::plan::Plan;

const LIST: &str = "/sys/kernel/debug/kprobes/list";
/// The kernel optimizes when all tasks have passed a quiescent state.
const PATIENCE: Duration = Duration::from_secs(120);
/// What stands before a place whose kprobe is to stay disabled.
const DISABLED: char = '!';

/// Makes a kprobe of each of the plan's places, and says how the kernel lists them when it has made jumps
/// of `count` of them. Those whose place begins with `!` stay disabled.
pub fn run(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    for (index, place) in plan.places().iter().enumerate() {
        let bare = place.trim_start_matches(DISABLED);
        tracefs::append("kprobe_events", &format!("p:mine/k{index} {bare}"))?;
        if !place.starts_with(DISABLED) {
            tracefs::write(&format!("events/mine/k{index}/enable"), "1")?;
        }
    }
    let list = optimized(plan.count)?;
    for (index, place) in plan.places().iter().enumerate() {
        if !place.starts_with(DISABLED) {
            tracefs::write(&format!("events/mine/k{index}/enable"), "0")?;
        }
    }
    tracefs::write("kprobe_events", "")?;
    Ok(json!({ "list": list }))
}

/// Makes a kprobe of each place, of which there may be none, and leaves it disabled; how the kernel
/// lists all that there are.
pub fn disabled(places: &str) -> io::Result<Vec<String>> {
    if !places.is_empty() {
        tracefs::ready()?;
    }
    for (index, place) in places
        .split(',')
        .filter(|place| !place.is_empty())
        .enumerate()
    {
        tracefs::append("kprobe_events", &format!("p:mine/d{index} {place}"))?;
    }
    lines()
}

/// Takes those away again.
pub fn forget(places: &str) -> io::Result<()> {
    if places.is_empty() {
        return Ok(());
    }
    tracefs::write("kprobe_events", "")
}

/// How the kernel lists its kprobes.
pub fn lines() -> io::Result<Vec<String>> {
    if !Path::new(LIST).exists() {
        machine::mount(c"debugfs", c"/sys/kernel/debug")?;
    }
    let list = fs::read_to_string(LIST)?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// The list when so many of its kprobes are jumps.
fn optimized(count: u64) -> io::Result<Vec<String>> {
    let start = Instant::now();
    loop {
        let list = lines()?;
        let jumps = list.iter().filter(|line| line.contains("[OPTIMIZED]"));
        if jumps.count() as u64 >= count {
            return Ok(list);
        }
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other(format!(
                "the kernel has not optimized {count} of its kprobes: {list:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
