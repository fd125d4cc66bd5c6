//! drgn, from `PyPI`, with a dump of a guest.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::context::Context;
use crate::note;
use crate::test::{Failure, wrong};

/// The program that lists tasks.
const LIST_TASKS: &str = include_str!("list_tasks.py");

/// Offsets, in bytes, of the listed members of `struct task_struct`.
#[derive(Debug, Clone, Copy)]
pub struct TaskLayout {
    pub size: u64,
    pub tasks: u64,
    pub pid: u64,
    pub comm: u64,
}

/// Returns what drgn prints of a dump: a line `release VERSION`, and a line `task PID NAME` for
/// each process.
///
/// # Errors
/// If drgn can't be started, or doesn't read the dump.
pub fn list_tasks(cx: &Context, dump: &Path, layout: TaskLayout) -> Result<Vec<String>, Failure> {
    let TaskLayout {
        size,
        tasks,
        pid,
        comm,
    } = layout;
    let output = Command::new("/bin/python3")
        .args(["-c", LIST_TASKS])
        .arg(dump)
        .args([size, tasks, pid, comm].map(|number| number.to_string()))
        .env("PYTHONPATH", cx.file("drgn"))
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::io("start Python"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(wrong!("drgn failed: {errors}"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines() {
        note(&format!("# drgn: {line}"));
    }
    Ok(text.lines().map(str::to_owned).collect())
}
