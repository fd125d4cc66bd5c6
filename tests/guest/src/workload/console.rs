//! Workloads that console input ends.

use std::hint::black_box;
use std::io;

use serde_json::{Value, json};

use crate::console;
use crate::plan::Plan;
use crate::with_name;

/// Counts in user mode until a line of input arrives, which it checks now and then.
pub fn spin() -> io::Result<Value> {
    let mut count: u64 = 0;
    while !console::has_input()? {
        for _ in 0..1_000_000 {
            count = black_box(count + 1);
        }
    }
    let line = console::line()?;
    Ok(json!({ "count": count, "line": line }))
}

/// Reports each line of input, until the line `quit`. A line that begins with `workload=` is a plan
/// of its own: its workload is done and reported, so that a test can choose when the guest works.
pub fn echo() -> io::Result<Value> {
    let mut lines = 0;
    loop {
        let line = console::line()?;
        if line == "quit" {
            return Ok(json!({ "lines": lines }));
        }
        lines += 1;
        if line.starts_with("workload=") {
            let plan = parse(&line)?;
            let done = super::run(&plan)?;
            console::report("done", with_name(done, plan.workload.name()));
            continue;
        }
        console::report("line", json!({ "text": line }));
    }
}

fn parse(line: &str) -> io::Result<Plan> {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    Plan::parse(&arguments).map_err(io::Error::other)
}
