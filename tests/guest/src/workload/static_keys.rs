//! The kernel patching its own text: trace events are static keys and static calls.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::{step, threads, tracefs};
use crate::plan::Plan;

/// Events whose switches patch jump labels all over the kernel.
const EVENTS: [&str; 3] = [
    "events/sched/sched_switch/enable",
    "events/signal/enable",
    "events/timer/enable",
];

/// Switches the events on and off, and makes the calls meanwhile, over and over until the switching
/// is done.
///
/// Steps, each round: `on`, `off`.
pub fn run(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    let events: Vec<String> = match &*plan.at {
        "" => EVENTS.map(str::to_owned).into(),
        at => at
            .split(',')
            .map(|event| format!("events/{event}/enable"))
            .collect(),
    };
    let done = AtomicBool::new(false);
    let (calls, switched) = thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut calls = 0;
            loop {
                let more = !done.load(Ordering::Relaxed);
                let round = threads::run(plan.call, plan.count)?;
                calls += round["calls"].as_u64().unwrap_or_default();
                if !more {
                    return Ok::<u64, io::Error>(calls);
                }
            }
        });
        let switched = (0..plan.rounds).try_for_each(|_| {
            for (switch, name) in [("1", "on"), ("0", "off")] {
                let mut events = events.iter();
                events.try_for_each(|event| tracefs::write(event, switch))?;
                step(plan, name, json!({}))?;
            }
            Ok::<(), io::Error>(())
        });
        done.store(true, Ordering::Relaxed);
        let calls = calls
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        (calls, switched)
    });
    switched?;
    tracefs::clear()?;
    Ok(json!({ "calls": calls?, "switches": plan.rounds * 2 * events.len() as u64 }))
}
