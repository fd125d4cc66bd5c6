//! What the thread that starts others calls, beside the calls of those.

use libc::{
    SYS_capget, SYS_capset, SYS_clone, SYS_clone3, SYS_landlock_restrict_self, SYS_prctl,
    SYS_prlimit64, SYS_rseq, SYS_sched_getaffinity, SYS_seccomp, SYS_set_robust_list,
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
    Rule::any(SYS_sched_getaffinity, "a thread's stack"),
    Rule::any(SYS_prlimit64, "a thread's stack"),
    Rule::any(SYS_seccomp, "a thread restricts itself"),
    Rule::any(SYS_landlock_restrict_self, "a thread restricts itself"),
    Rule::any(SYS_capset, "a thread restricts itself"),
    Rule::any(SYS_capget, "a thread restricts itself"),
    Rule::any(SYS_prctl, "a thread restricts itself, and has a name"),
];
