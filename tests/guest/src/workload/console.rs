//! Workloads that console input ends.

use std::hint::black_box;
use std::io;

use serde_json::{Value, json};

use crate::console;

/// Counts in user mode until a line of input arrives; looks for one now and then only.
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

/// Reports each line of input, until the line `quit`.
pub fn echo() -> io::Result<Value> {
    let mut lines = 0;
    loop {
        let line = console::line()?;
        if line == "quit" {
            return Ok(json!({ "lines": lines }));
        }
        lines += 1;
        console::report("line", json!({ "text": line }));
    }
}
