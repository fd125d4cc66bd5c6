//! Many calls in flight at once: processes that block inside `read`.

use std::fs;
use std::io::{self, Read, Write};

use serde_json::{Value, json};

use super::sys::{check, fork, wait, wait_for};
use crate::console;

/// Processes that sleep in `read` of a pipe that is empty.
pub struct Readers {
    children: Vec<libc::pid_t>,
    to: io::PipeWriter,
}

impl Readers {
    /// Starts `count` processes; all of them sleep when this returns.
    pub fn block(count: u64) -> io::Result<Self> {
        let (mut from, to) = io::pipe()?;
        let mut children = Vec::new();
        for _ in 0..count {
            children.push(fork(|| u8::from(from.read_exact(&mut [0]).is_err()))?);
        }
        for &child in &children {
            while !is_reading(child)? {
                std::thread::yield_now();
            }
        }
        Ok(Self { children, to })
    }

    /// Gives each a byte, and waits for its end.
    pub fn release(mut self) -> io::Result<()> {
        for _ in &self.children {
            self.to.write_all(&[1])?;
        }
        self.children.into_iter().try_for_each(wait_for)
    }

    /// Kills all, and waits for their end.
    fn kill(self) -> io::Result<()> {
        self.children.into_iter().try_for_each(kill)
    }
}

/// `count` processes read one byte each of a pipe that is empty. When all of them sleep, reports
/// `blocked` and waits for a line of input; then gives each its byte, or, if the line is `kill`, kills them.
pub fn run(count: u64) -> io::Result<Value> {
    let readers = Readers::block(count)?;
    console::report("blocked", json!({ "readers": count }));
    if console::line()? == "kill" {
        readers.kill()?;
        return Ok(json!({ "killed": count }));
    }
    readers.release()?;
    Ok(json!({ "readers": count }))
}

/// Kills a child and waits for its end.
fn kill(pid: libc::pid_t) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::kill(pid, libc::SIGKILL) })?;
    let status = wait(pid)?;
    if libc::WIFSIGNALED(status) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "a child that was killed ended with status {status:#x}"
    )))
}

/// Returns true if a process sleeps inside the system call `read`: `/proc/PID/syscall` has `running` for a process that
/// doesn't sleep, and the call's number first for one that does.
fn is_reading(pid: libc::pid_t) -> io::Result<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall"))?;
    let number = text.split_whitespace().next();
    Ok(number == Some(&libc::SYS_read.to_string()))
}
