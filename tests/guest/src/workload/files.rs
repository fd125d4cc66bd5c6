//! Opening and reading files.

use std::fs::File;
use std::io::{self, Read};

use serde_json::{Value, json};

/// Opens, reads and closes a file, `count` times: one `openat`, one `read` and one `close` each.
pub fn run(count: u64) -> io::Result<Value> {
    let mut buffer = [0; 64];
    let mut bytes = 0;
    for _ in 0..count {
        bytes += File::open("/init")?.read(&mut buffer)?;
    }
    Ok(json!({ "opens": count, "reads": count, "bytes": bytes }))
}
