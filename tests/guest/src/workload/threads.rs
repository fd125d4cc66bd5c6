//! System calls on all CPUs at once.

use std::fs::{self, File};
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::{klog, module, step};
use crate::plan::{Call, Plan};

/// As [`run`], several times with a report of each. Also reports complaints in the kernel's log.
pub fn rounds(plan: &Plan) -> io::Result<Value> {
    let mut calls = 0;
    for round in 0..plan.rounds {
        let mut done = run(plan.call, plan.count)?;
        calls += done["calls"].as_u64().unwrap_or_default();
        done["round"] = round.into();
        step(plan, "round", done)?;
    }
    Ok(json!({
        "syscall": plan.call.name(),
        "rounds": plan.rounds,
        "calls": calls,
        "complaints": klog::complaints()?,
    }))
}

/// One thread pinned to each CPU makes the call exactly `count` times. All start together, and all
/// results in a thread must be the same.
pub fn run(call: Call, count: u64) -> io::Result<Value> {
    let cpus = online_cpus()?;
    let answer = AtomicI64::new(0);
    on_each_cpu(|_| {
        let mut answers = (0..count).map(|_| make(call));
        let first = answers.next();
        answer.store(first.unwrap_or_default(), Ordering::Relaxed);
        match answers.find(|answer| Some(*answer) != first) {
            Some(other) => Err(io::Error::other(format!(
                "{} answered {other}, and {first:?} before",
                call.name()
            ))),
            None => Ok(()),
        }
    })?;
    Ok(json!({
        "syscall": call.name(),
        "threads": cpus.len(),
        "calls_each": count,
        "answer": answer.into_inner(),
        "calls": count * cpus.len() as u64,
    }))
}

/// Calls `work` in one thread pinned to each CPU, with the CPU's number. All start together.
pub fn on_each_cpu(work: impl Fn(usize) -> io::Result<()> + Sync) -> io::Result<()> {
    let cpus = online_cpus()?;
    let start = Barrier::new(cpus.len());
    thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|&cpu| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    let pinned = pin_to(&[cpu]);
                    // Before the error is returned, as the other threads wait for all.
                    start.wait();
                    pinned?;
                    work(cpu)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    })
}

/// The numbers of the CPUs that are online.
pub fn online_cpus() -> io::Result<Vec<usize>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_cpus(text.trim()).ok_or_else(|| io::Error::other(format!("odd CPU list {text:?}")))
}

/// A CPU list as the kernel writes it: `0-2,5`.
fn parse_cpus(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Binds the calling thread to these CPUs.
pub fn pin_to(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: a cpu_set_t of zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: it changes only the set, and ignores a number that is out of its range.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set lives for the call; 0 is the calling thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes the system call `count` times.
pub fn often(call: Call, count: u64) {
    for _ in 0..count {
        make(call);
    }
}

/// Makes the system call itself, never a version of it that a library answers on its own. Returns
/// its result.
pub fn make(call: Call) -> i64 {
    let (number, argument) = match call {
        Call::Getppid => (libc::SYS_getppid, 0),
        Call::Getuid => (libc::SYS_getuid, 0),
        Call::Getpgid => (libc::SYS_getpgid, 0),
        Call::Umask => (libc::SYS_umask, 0o022),
        Call::Alarm => (libc::SYS_alarm, 0),
        Call::Tun => return File::open(module::DEVICE).map_or(-1, |_| 0),
        Call::Rename => (libc::SYS_prctl, libc::PR_SET_NAME),
    };
    // SAFETY: the name ends in NUL and lives for ever; the other calls involve no memory.
    unsafe { libc::syscall(number, argument, c"guest".as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_cpu_lists_are_understood() {
        assert_eq!(parse_cpus("0"), Some(vec![0]));
        assert_eq!(parse_cpus("0-3"), Some(vec![0, 1, 2, 3]));
        assert_eq!(parse_cpus("0,2-3,7"), Some(vec![0, 2, 3, 7]));
        assert_eq!(parse_cpus(""), None);
    }
}
