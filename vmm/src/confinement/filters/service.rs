//! The system calls of threads that answer the calls of clients.

use libc::{
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_wait, SYS_eventfd2, SYS_fcntl, SYS_fstat,
    SYS_getcwd, SYS_getpeername, SYS_getsockname, SYS_getsockopt, SYS_ioctl, SYS_lseek,
    SYS_newfstatat, SYS_openat, SYS_prctl, SYS_readlink, SYS_readv, SYS_recvfrom, SYS_recvmsg,
    SYS_sendmsg, SYS_sendto, SYS_shutdown, SYS_socketpair, SYS_statx, SYS_writev,
};

use super::condition::Condition;
use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::any(SYS_epoll_create1, "the runtime waits for its connection"),
    Rule::any(SYS_epoll_ctl, "the runtime waits for its connection"),
    Rule::any(SYS_epoll_wait, "the runtime waits for its connection"),
    Rule::any(SYS_eventfd2, "the runtime wakes its threads"),
    Rule::any(SYS_recvfrom, "requests"),
    Rule::any(SYS_recvmsg, "requests"),
    Rule::any(SYS_readv, "requests"),
    Rule::any(SYS_sendto, "responses"),
    Rule::any(SYS_sendmsg, "responses"),
    Rule::any(SYS_writev, "responses"),
    Rule::any(SYS_shutdown, "the end of the connection"),
    Rule::any(SYS_getsockopt, "an error of the connection"),
    Rule::any(SYS_getsockname, "the connection's names"),
    Rule::any(SYS_getpeername, "the connection's names"),
    Rule::any(SYS_socketpair, "the runtime's signals"),
    Rule::only(SYS_prctl, Condition::PR_SET_NAME, "a thread has a name"),
    Rule::any(SYS_fcntl, "files are duplicated"),
    Rule::only(
        SYS_ioctl,
        Condition::KVM_REQUEST,
        "registers of stopped vCPUs",
    ),
    Rule::only(SYS_ioctl, Condition::FIONBIO, "sockets don't block"),
    Rule::any(
        SYS_openat,
        "the number of CPUs (control groups), and the backtrace of a panic; landlock keeps it from others",
    ),
    Rule::any(SYS_readlink, "the backtrace of a panic"),
    Rule::any(SYS_getcwd, "the backtrace of a panic"),
    Rule::any(SYS_lseek, "a file's rest"),
    Rule::any(SYS_fstat, "a file's length"),
    Rule::any(SYS_statx, "a file's length"),
    Rule::any(SYS_newfstatat, "a file's length"),
];
