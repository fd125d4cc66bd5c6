//! The guest's own function tracers.

use std::io;

use serde_json::{Map, Value, json};

use super::{step, threads, tracefs};
use crate::plan::Plan;

/// Traces the functions at the plan's places with each tracer in turn while it makes the calls, and
/// reports how often each function was seen.
///
/// Steps: `armed` and `called`, for each tracer.
pub fn run(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    let functions = plan.places();
    tracefs::write("set_ftrace_filter", &functions.join(" "))?;
    let mut seen = Map::new();
    for tracer in ["function", "function_graph"] {
        tracefs::clear()?;
        tracefs::write("current_tracer", tracer)?;
        step(plan, "armed", json!({ "tracer": tracer }))?;
        threads::often(plan.call, plan.count);
        step(
            plan,
            "called",
            json!({ "tracer": tracer, "calls": plan.count }),
        )?;
        let lines = tracefs::lines()?;
        let calls: Map<String, Value> = functions
            .iter()
            .map(|name| {
                let calls = lines.iter().filter(|line| is_call(line, name)).count();
                (name.clone(), calls.into())
            })
            .collect();
        seen.insert(tracer.into(), calls.into());
        tracefs::write("current_tracer", "nop")?;
    }
    tracefs::write("set_ftrace_filter", "")?;
    tracefs::clear()?;
    Ok(json!({ "calls": plan.count, "seen": seen }))
}

/// Returns true if a line is a call of this function: `... 1.0: name <-caller` of the function
/// tracer, `0)  0.1 us  |  name();` or `name() {` of the graph tracer. A return's line ends
/// otherwise.
pub fn is_call(line: &str, name: &str) -> bool {
    line.split_whitespace().any(|word| {
        word.strip_prefix(name)
            .is_some_and(|rest| matches!(rest, "" | "();" | "()"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_both_tracers_are_recognized() {
        let cases = [
            (" init-1 [000] ..... 1.0: sys_x <-do_syscall_64", true),
            (" 0)   0.291 us    |  sys_x();", true),
            (" 0)               |  sys_x() {", true),
            (" 0)   1.000 us    |  } /* sys_xy */", false),
            (" init-1 [000] ..... 1.0: sys_xy <-sys_z", false),
        ];
        for (line, expected) in cases {
            assert_eq!(is_call(line, "sys_x"), expected, "{line}");
        }
    }
}
