//! How many calls of functions the guest's own function tracer has seen.

use std::io;

use serde_json::{Map, Value, json};

use super::tracefs;
use crate::plan::Plan;

/// Reports how often each function of the plan's `at` is in the trace.
pub fn run(plan: &Plan) -> io::Result<Value> {
    let lines = tracefs::lines()?;
    let calls = |function: &str| lines.iter().filter(|line| is_of(line, function)).count();
    let places = plan.places();
    let counts = places.iter().map(|it| (it.clone(), calls(it).into()));
    Ok(json!({ "calls": counts.collect::<Map<String, Value>>() }))
}

/// Returns true if a line of the trace, `TASK-PID [CPU] FLAGS TIME: FUNCTION <-CALLER`, is a call of this function.
fn is_of(line: &str, function: &str) -> bool {
    let mut words = line.split_whitespace().rev();
    let is_caller = |word: &str| word.starts_with("<-");
    words.next().is_some_and(is_caller) && words.next() == Some(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_from_calls_of_others_and_from_its_own_calls() {
        let line = "    init-123     [001] d..1.    12.345678: pipe_read <-vfs_read";
        assert!(is_of(line, "pipe_read"));
        for other in ["read", "vfs_read", "<-vfs_read", "12.345678:"] {
            assert!(!is_of(line, other), "{other}");
        }
        assert!(!is_of("# tracer: function", "tracer:"));
    }
}
