//! How the kernel lists kprobes of its own.

use std::io;

use serde_json::{Value, json};

use super::debugfs;
use super::tools::optimizer;
use super::tracefs;
use crate::plan::Plan;

/// The mark before a place whose kprobe stays disabled.
const DISABLED: char = '!';

/// Makes a kprobe of each of the plan's places, or a kretprobe of those that end in `%return`, and reports how the
/// kernel lists them; with `jumps` after it has made jumps of those that it can. Those whose place begins with `!` stay
/// disabled.
pub fn run(plan: &Plan, jumps: bool) -> io::Result<Value> {
    tracefs::ready()?;
    optimizer::allow(jumps)?;
    let places = plan.places();
    for (index, place) in places.iter().enumerate() {
        let bare = place.trim_start_matches(DISABLED);
        tracefs::append("kprobe_events", &format!("p:mine/k{index} {bare}"))?;
    }
    let enable = |on: &str| {
        let mut places = places.iter().enumerate();
        places.try_for_each(|(index, place)| {
            if place.starts_with(DISABLED) {
                return Ok(());
            }
            tracefs::write(&format!("events/mine/k{index}/enable"), on)
        })
    };
    enable("1")?;
    if jumps {
        optimizer::settle()?;
    }
    let list = lines()?;
    enable("0")?;
    tracefs::write("kprobe_events", "")?;
    optimizer::allow(true)?;
    tracefs::clear()?;
    Ok(json!({ "list": list }))
}

/// Makes a kprobe of each place, of which there may be none, and leaves it disabled. Returns how the kernel lists all
/// its kprobes.
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

/// Removes those.
pub fn forget(places: &str) -> io::Result<()> {
    if places.is_empty() {
        return Ok(());
    }
    tracefs::write("kprobe_events", "")
}

/// Returns how the kernel lists its kprobes.
pub fn lines() -> io::Result<Vec<String>> {
    let list = debugfs::read(debugfs::KPROBES)?;
    Ok(list.lines().map(str::to_owned).collect())
}
