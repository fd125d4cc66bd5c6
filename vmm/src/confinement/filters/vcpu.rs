//! The system calls of a thread that runs a vCPU.

use libc::{
    SYS_eventfd2, SYS_fcntl, SYS_ioctl, SYS_timer_create, SYS_timer_delete, SYS_timer_settime,
};

use super::condition::Condition;
use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::only(
        SYS_ioctl,
        Condition::KVM_REQUEST,
        "KVM_RUN, and the vCPU's state",
    ),
    Rule::any(SYS_timer_create, "the limit of a step"),
    Rule::any(SYS_timer_settime, "the limit of a step"),
    Rule::any(SYS_timer_delete, "the limit of a step"),
    Rule::any(
        SYS_fcntl,
        "a device that the driver starts gets copies of its event files",
    ),
    Rule::any(
        SYS_eventfd2,
        "a device that the driver starts gets an event file",
    ),
];
