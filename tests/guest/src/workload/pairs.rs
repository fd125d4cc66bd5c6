//! System calls of one thread, one after the other.

use std::io;

use serde_json::{Value, json};

use super::threads;
use crate::plan::Call;

/// Makes `getppid` and then the call, `count` times from each CPU in turn. The thread is the process's first, and every
/// call finds the kernel's stack as the one before did.
pub fn run(call: Call, count: u64) -> io::Result<Value> {
    let cpus = threads::online_cpus()?;
    for &cpu in &cpus {
        threads::pin_to(&[cpu])?;
        for _ in 0..count {
            threads::make(Call::Getppid);
            threads::make(call);
        }
    }
    threads::pin_to(&cpus)?;
    Ok(json!({
        "syscall": call.name(),
        "cpus": cpus.len(),
        "calls_each": count,
        "calls": count * cpus.len() as u64,
    }))
}
