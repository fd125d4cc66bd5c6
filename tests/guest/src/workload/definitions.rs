//! Trace events of the guest's own, by definitions.

use std::fs;
use std::io;

use serde_json::{Value, json};

use super::tracefs;
use crate::plan::Plan;

/// The group that the definitions have to name.
const EVENTS: &str = "events/mine";
/// The switch of all of its events.
const GROUP: &str = "events/mine/enable";

/// Adds each definition of the plan's `at` to `kprobe_events` and switches them on. They are separated by `;`, and a
/// comma in one stands for a blank. Reports those that the kernel has refused.
pub fn define(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    let mut refused = Vec::new();
    for text in plan.at.split(';') {
        let text = text.replace(',', " ");
        if tracefs::append("kprobe_events", &text).is_err() {
            let log = tracefs::read("error_log").unwrap_or_default();
            // The last error has three lines: what is wrong, the command, and where.
            let lines: Vec<&str> = log.lines().collect();
            let last = lines.len().saturating_sub(3);
            let log = lines.get(last..).unwrap_or_default().join("\n");
            refused.push(json!({ "definition": text, "log": log }));
        }
    }
    // If all were refused, there is no group.
    if tracefs::path(GROUP).exists() {
        tracefs::write(GROUP, "1")?;
    }
    Ok(json!({ "refused": refused }))
}

/// Returns the lines of the trace, and removes the events.
pub fn trace() -> io::Result<Value> {
    tracefs::write(GROUP, "0")?;
    let lines = tracefs::lines()?;
    // An event with a trigger can't be removed.
    for event in fs::read_dir(tracefs::path(EVENTS))? {
        let trigger = format!("{EVENTS}/{}/trigger", event?.file_name().display());
        let has_stacks = tracefs::read(&trigger).is_ok_and(|text| text.contains("stacktrace:"));
        if has_stacks {
            tracefs::append(&trigger, "!stacktrace")?;
        }
    }
    tracefs::write("kprobe_events", "")?;
    tracefs::clear()?;
    Ok(json!({ "lines": lines }))
}
