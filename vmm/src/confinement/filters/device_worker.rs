//! The system calls of the thread of any device.

use libc::{SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_wait, SYS_eventfd2, SYS_fcntl};

use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::any(
        SYS_epoll_create1,
        "the worker waits for doorbells, files and the stop",
    ),
    Rule::any(
        SYS_epoll_ctl,
        "the worker waits for doorbells, files and the stop",
    ),
    Rule::any(
        SYS_epoll_wait,
        "the worker waits for doorbells, files and the stop",
    ),
    Rule::any(SYS_eventfd2, "the worker's own events"),
    Rule::any(SYS_fcntl, "files are duplicated"),
];
