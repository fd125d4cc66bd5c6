//! The system calls of every thread.

use libc::{
    SYS_brk, SYS_clock_gettime, SYS_clock_nanosleep, SYS_close, SYS_exit, SYS_exit_group,
    SYS_fcntl, SYS_futex, SYS_getpid, SYS_getrandom, SYS_gettid, SYS_madvise, SYS_mmap,
    SYS_mprotect, SYS_mremap, SYS_munmap, SYS_prctl, SYS_read, SYS_restart_syscall,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sched_yield, SYS_sigaltstack,
    SYS_tgkill, SYS_write,
};

use super::condition::Condition;
use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::any(SYS_brk, "memory of the allocator"),
    Rule::only(
        SYS_mmap,
        Condition::NOT_EXECUTABLE,
        "memory of the allocator and of buffers",
    ),
    Rule::only(
        SYS_mprotect,
        Condition::NOT_EXECUTABLE,
        "the allocator's arenas grow",
    ),
    Rule::any(SYS_mremap, "large vectors grow"),
    Rule::any(SYS_munmap, "memory is given back"),
    Rule::any(SYS_madvise, "memory is given back"),
    Rule::any(SYS_futex, "locks, conditions and channels"),
    Rule::any(SYS_read, "event files and timers"),
    Rule::any(SYS_write, "event files, and the log on standard error"),
    Rule::any(SYS_close, "files are dropped"),
    Rule::only(
        SYS_fcntl,
        Condition::F_GETFD,
        "a build with debug assertions looks whether a file is open before it closes it",
    ),
    Rule::any(SYS_sched_yield, "a lock is contended"),
    Rule::any(SYS_clock_gettime, "time, where the vDSO has no clock"),
    Rule::any(SYS_clock_nanosleep, "waits with a limit"),
    Rule::any(SYS_getrandom, "seeds of hash tables"),
    Rule::any(
        SYS_rt_sigprocmask,
        "a signal's handler, and the end of a thread",
    ),
    Rule::any(SYS_rt_sigreturn, "the end of a signal's handler"),
    Rule::any(
        SYS_restart_syscall,
        "a wait goes on after a stop of the process",
    ),
    Rule::any(SYS_sigaltstack, "the stack on which an overflow is noticed"),
    Rule::any(
        SYS_gettid,
        "a panic names its thread, and abort(3) signals it",
    ),
    Rule::any(SYS_getpid, "abort(3)"),
    Rule::only(
        SYS_tgkill,
        Condition::THIS_PROCESS,
        "vCPUs are driven out of guest mode; abort(3)",
    ),
    Rule::any(SYS_rt_sigaction, "abort(3), and a forbidden call's end"),
    Rule::any(SYS_exit, "the end of a thread"),
    Rule::any(SYS_exit_group, "the end of the process"),
    Rule::only(
        SYS_prctl,
        Condition::PR_GET_NAME,
        "a forbidden call's handler asks for the thread's name",
    ),
];
