//! The system calls of the thread that starts others, beside those of the others.

use libc::{SYS_capget, SYS_capset, SYS_landlock_restrict_self, SYS_prctl, SYS_seccomp};

use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::any(SYS_seccomp, "a thread restricts itself"),
    Rule::any(SYS_landlock_restrict_self, "a thread restricts itself"),
    Rule::any(SYS_capset, "a thread restricts itself"),
    Rule::any(SYS_capget, "a thread restricts itself"),
    Rule::any(SYS_prctl, "a thread restricts itself, and has a name"),
];
