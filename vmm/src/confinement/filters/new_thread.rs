//! The system calls of a thread that starts others, and of each of these as it begins.

use libc::{
    SYS_clone, SYS_clone3, SYS_prlimit64, SYS_rseq, SYS_sched_getaffinity, SYS_set_robust_list,
};

use super::condition::Condition;
use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::any(SYS_clone3, "threads are started"),
    Rule::only(
        SYS_clone,
        Condition::NEW_THREAD,
        "the same, where a sandbox around the process lacks clone3, as RestrictNamespaces= of systemd",
    ),
    Rule::any(SYS_set_robust_list, "a thread begins"),
    Rule::any(SYS_rseq, "a thread begins"),
    Rule::any(
        SYS_sched_getaffinity,
        "a thread's stack, and the number of CPUs",
    ),
    Rule::any(SYS_prlimit64, "a thread's stack"),
];
