//! The kernel patches its own text, in every way that the guest can cause.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use serde_json::{Value, json};

use super::{debugfs, module, step, tracefs};
use crate::plan::Plan;

/// Called once by each kind of change, while the switched thing is in its unusual state, or at the end if no such state
/// lasts.
type Hold<'a> = &'a dyn Fn() -> io::Result<()>;

/// A kind of change. It returns how many switches it has found and switched, both ways.
type Change = (&'static str, fn(&Plan, Hold<'_>) -> io::Result<usize>);

/// The last one writes many messages to the kernel's log.
const CHANGES: &[Change] = &[
    ("cpus", |_, hold| cpus(hold)),
    ("settings", |_, hold| settings(hold)),
    ("features", |_, hold| features(hold)),
    ("preemption", |_, hold| preemption(hold)),
    ("sockets", |_, hold| sockets(hold)),
    ("counters", |_, hold| counters(hold)),
    ("events", |_, hold| events(hold)),
    ("tracers", tracers),
    ("modules", modules),
    ("messages", |_, hold| messages(hold)),
];

/// Makes each kind of change in turn.
///
/// Steps: one in the middle of each kind, with its name.
pub fn run(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    debugfs::ready()?;
    let mut found = json!({});
    for (name, change) in CHANGES {
        let hold = || step(plan, name, json!({}));
        let switches =
            change(plan, &hold).map_err(|error| io::Error::other(format!("{name}: {error}")))?;
        found[name] = switches.into();
    }
    Ok(json!({ "switches": found }))
}

/// CPUs that go offline and online. If the kernel was booted with one CPU, the first that comes online makes it patch
/// all lock prefixes.
fn cpus(hold: Hold<'_>) -> io::Result<usize> {
    let mut switched = 0;
    for (round, switch) in ["1", "0", "1"].into_iter().enumerate() {
        for cpu in 1.. {
            let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
            let Ok(now) = fs::read_to_string(&file) else {
                break;
            };
            if now.trim() != switch {
                fs::write(&file, switch)?;
                switched += 1;
            }
        }
        if round == 0 {
            hold()?;
        }
    }
    Ok(switched)
}

/// Settings that are static keys. Some kernels lack some of them.
const SETTINGS: [&str; 8] = [
    "kernel/sched_schedstats",
    "kernel/task_delayacct",
    "kernel/bpf_stats_enabled",
    "kernel/timer_migration",
    "kernel/numa_balancing",
    "vm/numa_stat",
    "net/ipv4/fib_multipath_hash_policy",
    "net/core/netdev_tstamp_prequeue",
];

fn settings(hold: Hold<'_>) -> io::Result<usize> {
    let read = |name: &str| {
        let file = format!("/proc/sys/{name}");
        let before = fs::read_to_string(&file).ok()?;
        Some((file, before))
    };
    let found: Vec<(String, String)> = SETTINGS.into_iter().filter_map(read).collect();
    // Some can't be changed back.
    let set = |file: &str, value: &str| usize::from(fs::write(file, value).is_ok());
    let mut switched: usize = found.iter().map(|(file, _)| set(file, "1")).sum();
    hold()?;
    for (file, before) in &found {
        switched += set(file, "0") + set(file, before.trim());
    }
    Ok(switched)
}

/// The scheduler's features, each a static key.
fn features(hold: Hold<'_>) -> io::Result<usize> {
    let file = "/sys/kernel/debug/sched/features";
    let features = fs::read_to_string(file)?;
    let features: Vec<&str> = features.split_whitespace().collect();
    for feature in &features {
        let opposite = match feature.strip_prefix("NO_") {
            Some(name) => name.to_owned(),
            None => format!("NO_{feature}"),
        };
        fs::write(file, opposite)?;
        // Some make the kernel complain, or need what it lacks, so each is switched alone.
        if Some(feature) == features.first() {
            hold()?;
        }
        fs::write(file, feature)?;
    }
    Ok(features.len())
}

/// The ways of preemption, which are static calls.
fn preemption(hold: Hold<'_>) -> io::Result<usize> {
    let file = "/sys/kernel/debug/sched/preempt";
    let Ok(ways) = fs::read_to_string(file) else {
        hold()?;
        return Ok(0);
    };
    let bare = |way: &str| way.trim_matches(['(', ')']).to_owned();
    let now = ways.split_whitespace().find(|way| way.starts_with('('));
    let now = now.map(bare).unwrap_or_default();
    let others = ways.split_whitespace().map(bare);
    for way in others.filter(|way| *way != now) {
        fs::write(file, way)?;
    }
    hold()?;
    fs::write(file, now)?;
    Ok(ways.split_whitespace().count())
}

/// Sockets whose options are static keys.
fn sockets(hold: Hold<'_>) -> io::Result<usize> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let one: libc::c_int = 1;
    let options = [
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
        (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
        (libc::IPPROTO_IP, libc::IP_MINTTL),
    ];
    let mut switched = 0;
    for (level, option) in options {
        // SAFETY: the value lives for the call, and its size is given.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                level,
                option,
                (&raw const one).cast(),
                size_of_val(&one) as libc::socklen_t,
            )
        };
        switched += usize::from(result == 0);
    }
    hold()?;
    drop(socket);
    Ok(switched)
}

/// Counters of software events: each kind is a static key, and so is that there are any.
fn counters(hold: Hold<'_>) -> io::Result<usize> {
    /// `struct perf_event_attr` of the first version (`include/uapi/linux/perf_event.h`): a type, its
    /// own size, what is counted.
    #[repr(C)]
    struct Attributes {
        kind: u32,
        size: u32,
        what: u64,
        rest: [u64; 6],
    }
    const SOFTWARE: u32 = 1;
    const KINDS: u64 = 9;
    let mut open = Vec::new();
    for what in 0..KINDS {
        let attributes = Attributes {
            kind: SOFTWARE,
            size: size_of::<Attributes>() as u32,
            what,
            rest: [0; 6],
        };
        let pointer = &raw const attributes;
        // This process, on any CPU, in no group, without flags.
        // SAFETY: the attributes live for the call and have the size that they tell.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, pointer, 0, -1, -1, 0) };
        if fd >= 0 {
            // SAFETY: the call made this descriptor, and nothing else owns it.
            open.push(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) });
        }
    }
    hold()?;
    Ok(open.len())
}

/// All trace events, while nothing is written to the trace.
fn events(hold: Hold<'_>) -> io::Result<usize> {
    tracefs::write("tracing_on", "0")?;
    tracefs::write("events/enable", "1")?;
    hold()?;
    tracefs::write("events/enable", "0")?;
    tracefs::write("tracing_on", "1")?;
    let events = tracefs::read("available_events")?;
    Ok(events.lines().count())
}

/// Every tracer. The first one is for all functions, the others are for those at the plan's places.
fn tracers(plan: &Plan, hold: Hold<'_>) -> io::Result<usize> {
    tracefs::write("tracing_on", "0")?;
    let tracers = tracefs::read("available_tracers")?;
    let mut switched = 0;
    for filter in [String::new(), plan.places().join(" ")] {
        tracefs::write("set_ftrace_filter", &filter)?;
        for tracer in tracers.split_whitespace() {
            // `mmiotrace` takes all CPUs but one offline.
            let all = filter.is_empty();
            if tracer == "mmiotrace" || all && tracer != "function" {
                continue;
            }
            tracefs::write("current_tracer", tracer)?;
            if all {
                hold()?;
            }
            tracefs::write("current_tracer", "nop")?;
            switched += 1;
        }
    }
    tracefs::write("set_ftrace_filter", "")?;
    tracefs::write("tracing_on", "1")?;
    Ok(switched)
}

/// A module comes and goes, with its own alternatives, keys and calls.
fn modules(plan: &Plan, hold: Hold<'_>) -> io::Result<usize> {
    let plan = Plan {
        count: 1,
        rounds: 2,
        hold: false,
        at: String::new(),
        ..plan.clone()
    };
    module::run(&plan)?;
    hold()?;
    Ok(1)
}

/// The kernel's own debug messages: each is a static key.
fn messages(hold: Hold<'_>) -> io::Result<usize> {
    let file = "/sys/kernel/debug/dynamic_debug/control";
    if !Path::new(file).exists() {
        hold()?;
        return Ok(0);
    }
    let messages = fs::read_to_string(file)?.lines().count();
    fs::write(file, "file fs/* +p")?;
    hold()?;
    fs::write(file, "file fs/* -p")?;
    Ok(messages)
}
