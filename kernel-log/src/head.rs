//! The lines that begin a report.

use crate::kind::Kind;

/// A line that begins a report, or would begin one if it weren't within another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// True if the line is all of the report.
    pub(crate) alone: bool,
    /// True for the line by which `die` numbers an oops: `Oops: 0002 [#1] SMP` (`__die_header` in
    /// `arch/x86/kernel/dumpstack.c`). It comes first, or behind a line that says what has happened.
    pub(crate) die: bool,
}

/// What lockdep begins its reports with, behind `WARNING: ` (older: `INFO: `, within brackets).
const LOCKDEP: &[&str] = &[
    "possible circular locking dependency detected",
    "possible recursive locking detected",
    "possible irq lock inversion dependency detected",
    "inconsistent lock state",
    "lock order detected",
    "bad unlock balance detected",
    "bad contention detected",
    "held lock freed",
    "lock held when returning to user space",
    "lock held at task exit time",
    "suspicious RCU usage",
    "Nested lock was not taken",
    "Invalid wait context",
    "trying to register non-static key",
];

/// Returns the head of a report if a line, without the log's prefix, begins one. `ruled` says that a line of `=` is in
/// front, as with lockdep and the checkers of memory.
pub(crate) fn head(text: &str, ruled: bool) -> Option<Head> {
    let text = without_subsystem(text);
    let starts = |start: &str| text.starts_with(start);
    let lockdep = || {
        let text = text.trim_start_matches("[ ");
        let marked = ["WARNING: ", "INFO: ", "BUG: "]
            .iter()
            .any(|mark| text.starts_with(mark));
        marked && LOCKDEP.iter().any(|phrase| text.contains(phrase))
    };
    let kind = if starts("Kernel panic - not syncing") {
        Kind::Panic
    } else if is_die(text) {
        return Some(Head {
            kind: die_kind(text),
            alone: false,
            die: true,
        });
    } else if lockdep() {
        Kind::Lockdep
    } else if let Some(what) = text.strip_prefix("BUG: ") {
        bug(what)
    } else if starts("BUG ") && text.contains("): ") {
        // `slab_bug` in mm/slub.c: BUG kmalloc-64 (Not tainted): Right Redzone overwritten
        Kind::MemoryCorruption
    } else if starts("kernel BUG at ") {
        Kind::Bug
    } else if starts("general protection fault")
        && (text.contains(", probably for ") || text.contains(", maybe for "))
    {
        Kind::GeneralProtection
    } else if starts("PANIC: double fault") {
        Kind::DoubleFault
    } else if let Some(what) = text.strip_prefix("WARNING: ") {
        if is_warning(what) {
            Kind::Warning
        } else if ruled {
            Kind::Lockdep
        } else {
            return None;
        }
    } else if starts("INFO: task ")
        && text.contains(" blocked ")
        && text.contains(" for more than ")
    {
        Kind::HungTask
    } else if starts("INFO: rcu") && text.contains("detected") && text.contains("stall") {
        Kind::RcuStall
    } else if text.contains("Watchdog detected hard LOCKUP on cpu ") {
        Kind::HardLockup
    } else if starts("UBSAN: ") {
        Kind::Ubsan
    } else if starts("kmemleak: ") && text.contains(" new suspected memory leak") {
        Kind::Kmemleak
    } else if is_oom_kill(text) || text.contains(" invoked oom-killer: gfp_mask=") {
        Kind::OutOfMemory
    } else {
        return None;
    };
    let alone =
        kind == Kind::Kmemleak || is_oom_kill(text) || text.contains("BUG: Bad rss-counter state");
    Some(Head {
        kind,
        alone,
        die: false,
    })
}

/// Returns a line without what some files put in front of all that they print (`pr_fmt`).
fn without_subsystem(text: &str) -> &str {
    let names = ["watchdog: ", "NMI watchdog: ", "rcu: ", "traps: "];
    let text = names
        .iter()
        .find_map(|name| text.strip_prefix(name))
        .unwrap_or(text);
    // kernel/watchdog.c of 6.13 and newer: CPU1: Watchdog detected hard LOCKUP on cpu 1
    match text.split_once(": Watchdog detected ") {
        Some((cpu, _)) if cpu.starts_with("CPU") => &text[cpu.len() + 2..],
        _ => text,
    }
}

/// Returns the kind that the text behind `BUG: ` tells.
fn bug(what: &str) -> Kind {
    let starts = |start: &str| what.starts_with(start);
    if starts("KASAN: ") {
        Kind::Kasan
    } else if starts("KCSAN: ") {
        Kind::Kcsan
    } else if starts("KMSAN: ") {
        Kind::Kmsan
    } else if starts("KFENCE: ") {
        Kind::Kfence
    } else if starts("unable to handle ") || starts("kernel NULL pointer dereference") {
        Kind::Oops
    } else if what.contains("stack guard page was hit") {
        Kind::StackOverflow
    } else if starts("soft lockup - ") {
        Kind::SoftLockup
    } else if starts("workqueue lockup - ") {
        Kind::WorkqueueLockup
    } else if starts("sleeping function called from invalid context")
        || starts("scheduling while atomic")
    {
        Kind::SleepInAtomic
    } else if starts("Bad page ") || starts("Bad rss-counter state") {
        Kind::MemoryCorruption
    } else {
        Kind::OtherBug
    }
}

/// Returns true for `WARNING: CPU: 1 PID: 2 at file.c:3 f+0x1/0x2`, or from 6.19 on `WARNING: file.c:3 at f+0x1/0x2,
/// CPU#1: name/2` (`__warn` in `kernel/panic.c`).
fn is_warning(what: &str) -> bool {
    let old = what.starts_with("CPU: ") && what.contains(" PID: ");
    (old || what.contains(", CPU#")) && (what.contains(" at ") || what.starts_with("at "))
}

/// Returns true for `Oops: 0002 [#1] SMP`, `Oops: Oops: 0000 [#1]`, `int3: 0000 [#1]`: an error code of four digits,
/// and the number of the oops.
fn is_die(text: &str) -> bool {
    let Some((what, number)) = text.split_once(" [#") else {
        return false;
    };
    let numbered = number.split_once(']').is_some_and(|(number, _)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let code = what.rsplit_once(": ").map(|(_, code)| code);
    numbered
        && code.is_some_and(|code| {
            code.len() == 4 && code.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

fn die_kind(text: &str) -> Kind {
    if text.contains("general protection fault") {
        Kind::GeneralProtection
    } else if text.contains("double fault") {
        Kind::DoubleFault
    } else if text.contains("stack guard page") {
        Kind::StackOverflow
    } else {
        Kind::Oops
    }
}

/// Returns true for the last line of a report of the out-of-memory killer (`__oom_kill_process` in `mm/oom_kill.c`).
pub(crate) fn is_oom_kill(text: &str) -> bool {
    let starts = ["Out of memory", "Memory cgroup out of memory"];
    starts.iter().any(|start| text.starts_with(start)) && text.contains(": Killed process ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_report_tells_its_kind() {
        use Kind::*;
        let table = [
            (
                "BUG: kernel NULL pointer dereference, address: 0000000000000008",
                Oops,
            ),
            (
                "BUG: unable to handle page fault for address: ffffc90000001000",
                Oops,
            ),
            (
                "BUG: unable to handle kernel paging request at ffffc90000001000",
                Oops,
            ),
            ("Oops: 0002 [#1] PREEMPT SMP NOPTI", Oops),
            ("Oops: Oops: 0000 [#1] SMP", Oops),
            ("Oops: invalid opcode: 0000 [#2] SMP KASAN", Oops),
            ("invalid opcode: 0000 [#1] SMP", Oops),
            ("int3: 0000 [#1] SMP", Oops),
            ("divide error: 0000 [#1]", Oops),
            ("general protection fault: 0000 [#1] SMP", GeneralProtection),
            (
                "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP",
                GeneralProtection,
            ),
            (
                "Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1]",
                GeneralProtection,
            ),
            ("traps: PANIC: double fault, error_code: 0x0", DoubleFault),
            ("PANIC: double fault, error_code: 0x0", DoubleFault),
            ("double fault: 0000 [#1] PREEMPT SMP", DoubleFault),
            (
                "BUG: stack guard page was hit at 00000000d7f8a5a5 (stack is 0..1)",
                StackOverflow,
            ),
            (
                "BUG: TASK stack guard page was hit at ffffc90000000ff8 (stack is 0..1)",
                StackOverflow,
            ),
            ("kernel BUG at mm/slub.c:123!", Bug),
            (
                "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)",
                Panic,
            ),
            ("WARNING: CPU: 1 PID: 2 at lib/x.c:3 f+0x1/0x2", Warning),
            ("WARNING: CPU: 1 PID: 2 at f+0x1/0x2", Warning),
            ("WARNING: lib/x.c:3 at f+0x1/0x2, CPU#1: init/1", Warning),
            (
                "WARNING: [p == NULL] lib/x.c:3 at f+0x1/0x2, CPU#1: init/1",
                Warning,
            ),
            (
                "INFO: task init:1 blocked for more than 10 seconds.",
                HungTask,
            ),
            (
                "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [init:1]",
                SoftLockup,
            ),
            (
                "watchdog: Watchdog detected hard LOCKUP on cpu 1",
                HardLockup,
            ),
            (
                "NMI watchdog: Watchdog detected hard LOCKUP on cpu 1",
                HardLockup,
            ),
            (
                "watchdog: CPU1: Watchdog detected hard LOCKUP on cpu 1",
                HardLockup,
            ),
            (
                "rcu: INFO: rcu_preempt self-detected stall on CPU",
                RcuStall,
            ),
            (
                "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
                RcuStall,
            ),
            (
                "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-.... } 21 jiffies s: 1",
                RcuStall,
            ),
            ("INFO: rcu_tasks detected stalls on tasks:", RcuStall),
            (
                "BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 30s!",
                WorkqueueLockup,
            ),
            (
                "WARNING: possible circular locking dependency detected",
                Lockdep,
            ),
            (
                "WARNING: SOFTIRQ-safe -> SOFTIRQ-unsafe lock order detected",
                Lockdep,
            ),
            ("WARNING: suspicious RCU usage", Lockdep),
            ("WARNING: lock held when returning to user space!", Lockdep),
            ("[ BUG: Invalid wait context ]", Lockdep),
            ("INFO: trying to register non-static key.", Lockdep),
            ("BUG: KASAN: slab-use-after-free in f+0x1/0x2", Kasan),
            ("BUG: KCSAN: data-race in f / g", Kcsan),
            ("BUG: KMSAN: uninit-value in f+0x1/0x2", Kmsan),
            ("BUG: KFENCE: use-after-free read in f+0x1/0x2", Kfence),
            ("UBSAN: array-index-out-of-bounds in lib/x.c:3:4", Ubsan),
            (
                "kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
                Kmemleak,
            ),
            (
                "BUG: sleeping function called from invalid context at mm/x.c:3",
                SleepInAtomic,
            ),
            (
                "BUG: scheduling while atomic: init/1/0x00000002",
                SleepInAtomic,
            ),
            (
                "BUG: Bad page state in process init  pfn:12345",
                MemoryCorruption,
            ),
            (
                "BUG kmalloc-64 (Not tainted): Right Redzone overwritten",
                MemoryCorruption,
            ),
            ("BUG: spinlock bad magic on CPU#0, init/1", OtherBug),
            (
                "init invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
                OutOfMemory,
            ),
            (
                "Out of memory: Killed process 12 (a) total-vm:1kB",
                OutOfMemory,
            ),
            (
                "Memory cgroup out of memory: Killed process 12 (a) total-vm:1kB",
                OutOfMemory,
            ),
        ];
        for (line, kind) in table {
            assert_eq!(
                head(line, false).map(|head| head.kind),
                Some(kind),
                "{line:?}"
            );
        }
        // Behind a line of `=` a warning of another kind is lockdep's.
        assert_eq!(
            head("WARNING: something new!", true).map(|head| head.kind),
            Some(Lockdep)
        );
    }

    #[test]
    fn other_lines_begin_no_report() {
        for line in [
            "Oops",
            "Oops: no such file",
            "Oops: 12 [#1]",
            "Oops: 0000 [#]",
            "WARNING: /etc/x does not exist",
            "WARNING: CPU hotplug is slow",
            "INFO: lockdep is turned off.",
            "INFO: NMI handler took too long",
            "init[1]: segfault at 0 ip 0 sp 0 error 4 in init[0+1]",
            "traps: init[1] general protection fault ip:0 sp:0 error:0 in init[0+1]",
            "general protection fault",
            "kmemleak: Kernel memory leak detector initialized",
            "debug: BUG: x",
            " BUG: x",
            "---[ end Kernel panic - not syncing: x ]---",
            "",
        ] {
            assert_eq!(head(line, false), None, "{line:?}");
        }
    }
}
