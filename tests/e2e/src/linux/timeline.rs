//! The timeline of a real kernel's boot, by the command line.

use std::process::{Command, Stdio};

use rustix::process::{WaitOptions, getpid, set_child_subreaper, waitpid};
use serde_json::Value;

use super::guest::files;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "the_command_line_tells_the_timeline_of_a_boot",
    ids: &["KP17"],
    needs: Needs::Linux,
    run: timeline,
}];

/// Stages in the order of a boot (`arch/x86/kernel/head64.c`, `init/main.c`), as the command
/// names them on this kernel.
const ORDER: [&str; 17] = [
    "x86_64_start_kernel",
    "start_kernel",
    "setup_arch",
    "mem_init",
    "sched_init",
    "init_IRQ",
    "time_init",
    "console_init",
    "rest_init",
    "kernel_init",
    "kernel_init_freeable",
    "workqueue_init",
    "smp_init",
    "driver_init",
    "wait_for_initramfs",
    "free_initmem",
    "run_init_process",
];

/// Those of them that no build of the kernel lacks.
const CERTAIN: [&str; 6] = [
    "start_kernel",
    "setup_arch",
    "rest_init",
    "kernel_init_freeable",
    "free_initmem",
    "run_init_process",
];

/// Levels of initcalls in their order (`INIT_CALLS` in `include/asm-generic/vmlinux.lds.h`).
const LEVELS: [&str; 17] = [
    "early",
    "pure",
    "core",
    "core_sync",
    "postcore",
    "postcore_sync",
    "arch",
    "arch_sync",
    "subsys",
    "subsys_sync",
    "fs",
    "fs_sync",
    "rootfs",
    "device",
    "device_sync",
    "late",
    "late_sync",
];

/// A range around the numbers that distributions' kernels have.
const INITCALLS: std::ops::Range<usize> = 200..3000;

fn timeline(cx: &Context) -> TestResult {
    let report = report(cx)?;
    let kernel = report["kernel"].as_str().unwrap_or_default();
    check!(kernel.starts_with("6.1."), "the kernel is {kernel:?}");
    check_eq!(report["events_lost"], 0, "lost events");
    check_eq!(report["ending"], Value::Null, "the guest's own end");
    let end = stages(&report)?;
    let initcalls = initcalls(&report["initcalls"], end)?;
    pass_with(format!(
        "{} ms to PID 1, {initcalls} initcalls in {} ms; left out: {}",
        end / 1000,
        report["initcalls"]["total_ms"],
        report["left_out"]
    ))
}

/// Runs the command. It has a server of its own, which must have ended with its guest when the command has ended.
fn report(cx: &Context) -> Result<Value, Failure> {
    // A process that the command leaves behind becomes a child of this process, which has no other one then.
    cx.end_kept()?;
    let adopt = |whether| {
        set_child_subreaper(whether)
            .map_err(|error| Failure::io("adopt what the command leaves behind")(error.into()))
    };
    adopt(Some(getpid()))?;
    let output = Command::new(cx.program("vmprobe"))
        .args(["boot-timeline", &cx.file(files::BZIMAGE_6_1), "--json"])
        .args(["--initramfs", &cx.file(files::INITRAMFS)])
        .args(["--cmdline", "console=ttyS0 quiet -- workload=none"])
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::io("start vmprobe"))?;
    let left = waitpid(None, WaitOptions::NOHANG);
    adopt(None)?;
    let error = String::from_utf8_lossy(&output.stderr);
    check_eq!(output.status.code(), Some(0), "its exit code ({error})");
    check_eq!(
        left.map(|_| "a process"),
        Err(rustix::io::Errno::CHILD),
        "what the command left running"
    );
    serde_json::from_slice(&output.stdout).map_err(|error| wrong!("no JSON: {error}"))
}

/// Checks the stages. Returns the time of the last one in microseconds.
fn stages(report: &Value) -> Result<u64, Failure> {
    let reached = array(&report["stages"])?;
    let names: Vec<&str> = reached
        .iter()
        .filter_map(|stage| stage["name"].as_str())
        .collect();
    let mut expected = ORDER.to_vec();
    expected.retain(|name| names.contains(name));
    check_eq!(names, expected, "stages");
    for name in CERTAIN {
        check!(names.contains(&name), "no {name} in {names:?}");
    }
    let times = micros(reached, "ms")?;
    check_eq!(times.first(), Some(&0), "time of the first stage");
    check!(
        times.is_sorted_by(|a, b| a < b),
        "times don't grow: {times:?}"
    );
    Ok(times.last().copied().unwrap_or_default())
}

/// Checks the initcalls of a boot that took `end` microseconds. Returns their number.
fn initcalls(initcalls: &Value, end: u64) -> Result<usize, Failure> {
    check_eq!(initcalls["missed"], 0, "missed initcalls");
    let mut calls = array(&initcalls["calls"])?.clone();
    check_eq!(initcalls["count"], calls.len(), "number of initcalls");
    check!(
        INITCALLS.contains(&calls.len()),
        "{} initcalls",
        calls.len()
    );
    for call in &calls {
        let function = call["function"].as_str().unwrap_or_default();
        check!(
            !function.is_empty() && !function.contains("0x"),
            "no symbol of an initcall: {call}"
        );
    }
    let took = micros(&calls, "ms")?;
    check!(
        took.is_sorted_by(|a, b| a >= b),
        "the slowest aren't the first"
    );

    // One vCPU makes the calls one after the other.
    calls.sort_by(|a, b| {
        let start = |call: &Value| call["start_ms"].as_f64().unwrap_or_default();
        start(a).total_cmp(&start(b))
    });
    let starts = micros(&calls, "start_ms")?;
    let took = micros(&calls, "ms")?;
    let ends = starts.iter().zip(&took).map(|(start, took)| start + took);
    let nexts = starts.iter().skip(1).chain([&end]);
    for ((call, ends), next) in calls.iter().zip(ends).zip(nexts) {
        check!(ends <= *next, "{call} goes on after {next} us");
    }
    let levels: Vec<usize> = calls
        .iter()
        .filter_map(|call| LEVELS.iter().position(|level| call["level"] == *level))
        .collect();
    check!(levels.is_sorted(), "levels aren't in order: {calls:?}");
    check!(
        levels.len() * 2 > calls.len(),
        "levels of {} of {} initcalls",
        levels.len(),
        calls.len()
    );
    Ok(calls.len())
}

fn array(value: &Value) -> Result<&Vec<Value>, Failure> {
    value.as_array().ok_or_else(|| wrong!("no list: {value}"))
}

/// Returns this field of each, in microseconds. It must be milliseconds and not negative.
fn micros(list: &[Value], field: &str) -> Result<Vec<u64>, Failure> {
    let number = |value: &Value| {
        let number = value[field].as_f64().filter(|number| *number >= 0.0);
        let micros = number.map(|number| (number * 1000.0).round() as u64);
        micros.ok_or_else(|| wrong!("no time {field} in {value}"))
    };
    list.iter().map(number).collect()
}
