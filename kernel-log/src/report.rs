//! A report of the kernel's.

use std::time::Duration;

use crate::kind::Kind;
use crate::stack::{Frame, Place};

/// Lines of a report that are kept.
pub const MAX_REPORT_LINES: usize = 512;

/// Frames of a report's stack that are kept.
pub const MAX_FRAMES: usize = 128;

/// A task of the guest's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// Its name, of up to 15 bytes (`TASK_COMM_LEN`, `include/linux/sched.h`) unless it is a worker.
    pub comm: String,
    /// Its number.
    pub pid: u32,
}

/// What a kernel has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The kind of what has happened.
    pub kind: Kind,
    /// The line that says what has happened, without the log's prefix.
    pub title: String,
    /// When the report began, if the kernel prints times.
    pub at: Option<Duration>,
    /// The CPU that it is about.
    pub cpu: Option<u32>,
    /// The task that it is about.
    pub task: Option<Task>,
    /// All of it, [`MAX_REPORT_LINES`] at most, without the log's prefix.
    pub lines: Vec<String>,
    /// The kernel's instruction pointer, where the report has registers in front of its stack. The stack then
    /// begins with the caller.
    pub rip: Option<Place>,
    /// The first stack in it, innermost frame first, [`MAX_FRAMES`] at most. Frames of interrupts and of what they
    /// have interrupted follow each other.
    pub stack: Vec<Frame>,
    /// True if lines are missing: there were too many, or the report stopped without its end.
    pub truncated: bool,
}

/// Beginnings of the names of functions that only report. The place that is to blame is further out on the stack.
const REPORTERS: &[&str] = &[
    "dump_stack",
    "show_stack",
    "print_",
    "kasan_",
    "__kasan_",
    "__asan_",
    "kmsan_",
    "__msan_",
    "kcsan_",
    "__tsan_",
    "check_noncircular",
    "check_prev_add",
    "check_deadlock",
    "mark_lock",
    "validate_chain",
    "__lock_acquire",
    "lock_acquire",
    "lock_release",
    "lockdep_",
    "debug_check_no_locks",
    "debug_object",
    "__might_resched",
    "__might_sleep",
    "__schedule_bug",
    "__schedule",
    "schedule",
    "panic",
    "vpanic",
    "check_panic_on_warn",
    "__warn",
    "report_bug",
    "handle_bug",
    "exc_",
    "asm_exc_",
    "oom_kill_process",
    "dump_header",
    "out_of_memory",
    "ubsan_",
    "__ubsan_",
    "handle_overflow",
    "nmi_",
    "rcu_",
    "trigger_",
    "bad_page",
    "slab_",
    "object_err",
    "check_object",
    "check_bytes_and_report",
    "kmem_cache_",
    "kfree",
];

impl Report {
    /// Returns the place that the report is about, as far as the report tells: the instruction pointer, else the first
    /// reliable frame of the stack that is not of the code that reports.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        let reports = |place: &Place| {
            let name = place.function().unwrap_or_default();
            REPORTERS.iter().any(|start| name.starts_with(start))
        };
        let frames = self.stack.iter().filter(|frame| frame.reliable);
        let mut places = frames.map(|frame| &frame.place);
        self.rip
            .as_ref()
            .or_else(|| places.find(|place| !reports(place)))
    }
}
