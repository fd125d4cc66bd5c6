//! A report that is being printed.

use std::time::Duration;

use crate::bound::start_of;
use crate::facts::facts;
use crate::head::{Head, is_oom_kill};
use crate::kind::Kind;
use crate::line::Caller;
use crate::lines::MAX_LINE;
use crate::report::{MAX_FRAMES, MAX_REPORT_LINES, Report};
use crate::stack::{Frame, kernel_rip};

/// Other CPUs whose stacks are taken into a report.
const MAX_HELPERS: usize = 64;

/// What a line is to an open report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A part of it.
    Inside,
    /// Its last line.
    Last,
    /// The report is over, and this line isn't part of it.
    Behind,
}

/// How a kind of reports ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// `---[ end trace 0000000000000000 ]---` (`print_oops_end_marker` in `kernel/panic.c`).
    Trace,
    /// `---[ end Kernel panic`, or the message of the reboot in its place (`vpanic` in `kernel/panic.c`).
    Panic,
    /// A line of `=`.
    Rule,
    /// A line of `=`, or `---[ end trace ]---` from 5.11 on (`ubsan_epilogue` in `lib/ubsan.c`).
    RuleOrTrace,
    /// The end of its only stack: ` </TASK>`, or a line that is no part of a stack.
    Stack,
    /// A line that no dump of registers, stacks or tasks has.
    Dump,
    /// The line that names the process that is killed.
    Kill,
}

fn end_of(kind: Kind) -> End {
    match kind {
        Kind::Oops
        | Kind::GeneralProtection
        | Kind::DoubleFault
        | Kind::StackOverflow
        | Kind::Bug
        | Kind::Warning => End::Trace,
        Kind::Panic => End::Panic,
        Kind::Kasan | Kind::Kcsan | Kind::Kmsan | Kind::Kfence => End::Rule,
        Kind::Ubsan => End::RuleOrTrace,
        Kind::Lockdep
        | Kind::Kmemleak
        | Kind::SleepInAtomic
        | Kind::MemoryCorruption
        | Kind::OtherBug => End::Stack,
        Kind::HungTask
        | Kind::SoftLockup
        | Kind::HardLockup
        | Kind::RcuStall
        | Kind::WorkqueueLockup => End::Dump,
        Kind::OutOfMemory => End::Kill,
    }
}

/// Returns true for checkers that print stacks without `Call Trace:` in front (`stack_trace_print` in
/// `kernel/stacktrace.c`).
fn has_bare_stacks(kind: Kind) -> bool {
    matches!(kind, Kind::Kcsan | Kind::Kmsan | Kind::Kfence)
}

/// Returns within how many lines the stack has to come in a report that ends with its stack. Lockdep's comes late:
/// lockdep first prints the chain of locks.
fn most_before_stack(kind: Kind) -> usize {
    match kind {
        Kind::Lockdep => MAX_REPORT_LINES,
        Kind::MemoryCorruption => 128,
        _ => 24,
    }
}

#[derive(Debug)]
pub(super) struct Open {
    report: Report,
    end: End,
    /// True if the line with the number of an oops has come.
    died: bool,
    /// Lines with `Call Trace:` so far.
    stacks: usize,
    in_stack: bool,
    /// True if the list of locks has begun with which a report without a stack ends.
    listed_locks: bool,
    /// The time of its last line.
    pub(super) last: Option<Duration>,
    /// True if it began at a time before that of a line in front of it.
    pub(super) late: bool,
    /// Other callers whose lines belong to it.
    helpers: Vec<Caller>,
}

impl Open {
    /// Makes a report that begins with the lines in front of its head, if there are any.
    pub(super) fn new(head: Head, title: &str, at: Option<Duration>, before: Vec<String>) -> Self {
        let report = Report {
            kind: head.kind,
            title: start_of(title, MAX_LINE).to_owned(),
            at,
            cpu: None,
            task: None,
            lines: before,
            rip: None,
            stack: Vec::new(),
            truncated: false,
        };
        let mut open = Self {
            report,
            end: end_of(head.kind),
            died: head.die,
            stacks: 0,
            in_stack: false,
            listed_locks: false,
            last: at,
            late: false,
            helpers: Vec::new(),
        };
        open.keep(title);
        open
    }

    /// Returns what a line is to the report. `head` is set if the line could be the head of a report.
    pub(super) fn part(&self, text: &str, head: Option<Head>) -> Part {
        if let Some(head) = head
            && !self.takes_head(head)
        {
            return Part::Behind;
        }
        let ends_trace = text.starts_with("---[ end trace");
        let last = match self.end {
            End::Trace => ends_trace,
            End::Panic => {
                text.starts_with("---[ end Kernel panic") || text.starts_with("Rebooting in ")
            }
            End::Rule => is_rule(text),
            End::RuleOrTrace => ends_trace || is_rule(text),
            End::Stack if self.stacks > 0 => {
                let goes_on = self.in_stack && (is_stack(text) || is_register(text));
                if !goes_on && !text.starts_with("Call Trace:") {
                    return Part::Behind;
                }
                text.trim() == "</TASK>"
            }
            // `lockdep_sys_exit` in kernel/locking/lockdep.c prints locks last, and no stack.
            End::Stack if self.listed_locks && !is_lock(text) => return Part::Behind,
            End::Stack if self.report.lines.len() >= most_before_stack(self.report.kind) => {
                return Part::Behind;
            }
            End::Stack => false,
            // What `debug_show_all_locks` in kernel/locking/lockdep.c ends with.
            End::Dump if self.report.kind == Kind::HungTask && is_rule(text) => true,
            End::Dump if !is_dump(text) => return Part::Behind,
            End::Dump => false,
            End::Kill => is_oom_kill(text),
        };
        if last || self.report.lines.len() + 1 >= MAX_REPORT_LINES {
            Part::Last
        } else {
            Part::Inside
        }
    }

    /// Returns true if a line that begins reports is only a part of this one.
    fn takes_head(&self, head: Head) -> bool {
        match self.report.kind {
            // Reports of other CPUs are of no use now, and none of them is whole.
            Kind::Panic => head.kind != Kind::Panic,
            Kind::OutOfMemory => head.kind == Kind::OutOfMemory && head.alone,
            Kind::Warning => false,
            // The first line has said what happened, the second one has the number.
            _ => head.die && !self.died && self.end == End::Trace,
        }
    }

    /// Returns true if another report can be within this one: KASAN may cause a warning while it prints broken memory.
    pub(super) fn may_surround(&self, head: Head) -> bool {
        self.end == End::Rule && head.kind != Kind::Panic && end_of(head.kind) != End::Rule
    }

    /// Takes a line in.
    pub(super) fn take(&mut self, text: &str, at: Option<Duration>, head: Option<Head>) {
        self.died |= head.is_some_and(|head| head.die);
        self.last = at.or(self.last);
        self.keep(text);
    }

    fn keep(&mut self, text: &str) {
        if self.report.kind == Kind::OutOfMemory && is_oom_kill(text) {
            self.report.title = start_of(text, MAX_LINE).to_owned();
        }
        self.learn(text);
        self.report.lines.push(start_of(text, MAX_LINE).to_owned());
    }

    fn learn(&mut self, text: &str) {
        let found = facts(text);
        let report = &mut self.report;
        self.listed_locks |=
            report.title.contains("lock held when returning") && text.contains(" held by ");
        let bare = has_bare_stacks(report.kind);
        // Behind the first stack there are other CPUs and tasks.
        if self.stacks == 0 || bare {
            report.cpu = report.cpu.or(found.cpu);
            report.task = report.task.take().or(found.task);
            report.rip = report.rip.take().or_else(|| kernel_rip(text));
        }
        let begins = bare && self.stacks == 0 && text.starts_with(' ');
        if begins && let Some(frame) = Frame::parse(text) {
            report.stack.push(frame);
            self.stacks += 1;
            self.in_stack = true;
        } else if text.trim_start().starts_with("Call Trace:") {
            self.stacks += 1;
            self.in_stack = true;
        } else if self.in_stack {
            if let Some(frame) = Frame::parse(text) {
                if self.stacks == 1 && report.stack.len() < MAX_FRAMES {
                    report.stack.push(frame);
                }
            } else {
                self.in_stack = is_stack(text) || is_register(text);
            }
        }
    }

    /// Returns true if a line of another caller belongs to this report: a CPU that sees a stall has the other CPUs
    /// print their stacks (`nmi_cpu_backtrace` in `lib/nmi_backtrace.c`).
    pub(super) fn adopts(&mut self, caller: Caller, text: &str) -> bool {
        if self.helpers.contains(&caller) {
            return true;
        }
        let begins = self.end == End::Dump && text.starts_with("NMI backtrace for cpu");
        if begins && self.helpers.len() < MAX_HELPERS {
            self.helpers.push(caller);
            return true;
        }
        false
    }

    /// Closes the report and returns it. Another one may cut it short; a panic does so regularly, in front of the
    /// other's end mark (`check_panic_on_warn` in `kernel/panic.c`).
    pub(super) fn close(mut self, next: Option<Head>) -> Report {
        let panics = next.is_some_and(|next| next.kind == Kind::Panic);
        let ends = match self.end {
            End::Stack | End::Dump | End::Kill => true,
            // With a negative `panic=` the kernel reboots without a word.
            End::Panic if self.stacks > 0 => true,
            _ if panics && self.stacks > 0 => true,
            _ => self.report.lines.last().is_some_and(|text| {
                is_rule(text) || text.starts_with("---[ end ") || text.starts_with("Rebooting in ")
            }),
        };
        self.report.truncated = !ends || self.report.lines.len() >= MAX_REPORT_LINES;
        self.report
    }
}

/// Returns true for a line of `=`: the shortest one is lockdep's, of 25.
pub(super) fn is_rule(text: &str) -> bool {
    text.len() >= 20 && text.bytes().all(|byte| byte == b'=')
}

/// Returns true for a lock in a list of those that are held (`print_lock` in `kernel/locking/lockdep.c`).
fn is_lock(text: &str) -> bool {
    text.starts_with(" #")
}

/// Returns true for a line of a stack: a frame, or a mark such as `<IRQ>` or `</TASK>` (`show_trace_log_lvl` in
/// `arch/x86/kernel/dumpstack.c`).
fn is_stack(text: &str) -> bool {
    let trimmed = text.trim();
    trimmed.starts_with('<') && trimmed.ends_with('>') || Frame::parse(text).is_some()
}

/// Returns true for a line of registers (`__show_regs` in `arch/x86/kernel/process_64.c`, `show_ip` in `dumpstack.c`).
fn is_register(text: &str) -> bool {
    const NAMES: &[&str] = &[
        "RIP: ", "RSP: ", "RAX: ", "RDX: ", "RBP: ", "R08: ", "R10: ", "R13: ", "FS:  ", "CS:  ",
        "CR2: ", "DR0: ", "DR3: ", "PKRU: ", "Code: ",
    ];
    let text = text.trim_start();
    NAMES.iter().any(|name| text.starts_with(name))
}

/// Returns true for a line of a dump of CPUs, tasks, workers or locks. The files that print them are those of [`Kind`],
/// and `lib/dump_stack.c`, `lib/nmi_backtrace.c`, `kernel/sched/core.c` and `kernel/locking/lockdep.c`.
fn is_dump(text: &str) -> bool {
    const STARTS: &[&str] = &[
        "Call Trace:",
        "CPU: ",
        "CPU#",
        "Hardware name: ",
        "Modules linked in:",
        "Workqueue: ",
        "Stopper: ",
        "irq event stamp: ",
        "hardirqs last ",
        "softirqs last ",
        "Preemption disabled at:",
        "NMI backtrace for cpu ",
        "Sending NMI from CPU ",
        "task:",
        "rcu: ",
        "Tainted: ",
        "Not tainted ",
        "\"echo 0 > /proc/sys/kernel/hung_task_timeout_secs\"",
        "Future hung task reports are suppressed",
        "Blocked by coredump",
        "INFO: lockdep is turned off.",
        "INFO: task ",
        "Showing ",
        "workqueue ",
        "pool ",
        "Kernel Offset: ",
    ];
    // `sched_show_task` prints `task:`, the rest is indented; so are the lines of locks, after their count.
    let indented = text.starts_with([' ', '\t']);
    // `check_holdout_task` in kernel/rcu/tasks.h.
    let holdout = text.contains(" nvcsw: ");
    let locks = text.contains(" held by ") || text.contains(" on stack guessed");
    text.is_empty()
        || indented
        || locks
        || holdout
        || is_register(text)
        || is_stack(text)
        || STARTS.iter().any(|start| text.starts_with(start))
}
