//! A kprobe of the guest's own that is also registered before and after it is armed.

use std::io;

use serde_json::{Value, json};

use super::{kprobe, step, threads, timed, tracefs};
use crate::plan::Plan;

const EVENT: &str = "switched";

/// Registers a kprobe event at the plan's place, arms it, disarms it and removes it; makes the calls while it is armed
/// and after it is disarmed. With `jump` it waits until the kernel has made it a jump.
///
/// Steps: `registered`, `armed`, `called`, `disarmed`, `called again`.
pub fn run(plan: &Plan, jump: bool) -> io::Result<Value> {
    tracefs::ready()?;
    let enable = format!("events/mine/{EVENT}/enable");
    tracefs::append("kprobe_events", &format!("p:mine/{EVENT} {}", plan.at))?;
    step(plan, "registered", json!({}))?;
    tracefs::write(&enable, "1")?;
    if jump {
        timed::is_optimized()?;
    }
    step(plan, "armed", json!({}))?;
    threads::often(plan.call, plan.count);
    step(plan, "called", json!({ "calls": plan.count }))?;
    tracefs::write(&enable, "0")?;
    step(plan, "disarmed", json!({}))?;
    threads::often(plan.call, plan.count);
    step(plan, "called again", json!({ "calls": plan.count }))?;
    let profile = tracefs::read("kprobe_profile")?;
    let (hits, missed) = kprobe::counts(&profile, EVENT)
        .ok_or_else(|| io::Error::other(format!("kprobe_profile has no {EVENT}")))?;
    tracefs::write("kprobe_events", "")?;
    tracefs::clear()?;
    Ok(json!({ "calls": 2 * plan.count, "hits": hits, "missed": missed }))
}
