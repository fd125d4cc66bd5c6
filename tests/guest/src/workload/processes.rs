//! Starting processes and talking to one.

use std::io::{self, Read, Write};

use serde_json::{Value, json};

use super::sys::{fork, wait_for};
use super::threads;

/// Starts a process that ends at once and waits for it, `count` times.
pub fn forks(count: u64) -> io::Result<Value> {
    for _ in 0..count {
        wait_for(fork(|| 0)?)?;
    }
    Ok(json!({ "forks": count }))
}

/// Starts a process and waits for it, `count` times from each CPU in turn.
pub fn everywhere(count: u64) -> io::Result<Value> {
    let cpus = threads::online_cpus()?;
    for &cpu in &cpus {
        threads::pin_to(&[cpu])?;
        forks(count)?;
    }
    threads::pin_to(&cpus)?;
    Ok(json!({ "forks": count * cpus.len() as u64, "cpus": cpus.len() }))
}

/// Sends a byte to another process, which sends it back, `count` times: two context switches
/// each at least, if both are on one CPU.
pub fn pipes(count: u64) -> io::Result<Value> {
    let (mut from_us, mut to_child) = io::pipe()?;
    let (mut from_child, mut to_us) = io::pipe()?;
    let child = fork(|| {
        let mut byte = [0];
        for _ in 0..count {
            if from_us
                .read_exact(&mut byte)
                .and_then(|()| to_us.write_all(&byte))
                .is_err()
            {
                return 1;
            }
        }
        0
    })?;
    let mut byte = [0];
    for n in 0..count {
        let sent = [n as u8];
        to_child.write_all(&sent)?;
        from_child.read_exact(&mut byte)?;
        if byte != sent {
            return Err(io::Error::other(
                "a pipe gave back another byte than it was given",
            ));
        }
    }
    wait_for(child)?;
    Ok(json!({ "round_trips": count }))
}
