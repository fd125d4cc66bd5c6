//! The system calls of a thread that serves a network device.

use libc::{
    SYS_ioctl, SYS_readv, SYS_recvfrom, SYS_recvmsg, SYS_sendmsg, SYS_sendto, SYS_shutdown,
    SYS_timerfd_create, SYS_timerfd_settime, SYS_writev,
};

use super::condition::Condition;
use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::any(SYS_timerfd_create, "rate limits"),
    Rule::any(SYS_timerfd_settime, "rate limits"),
    Rule::any(SYS_readv, "frames from a tap"),
    Rule::any(SYS_writev, "frames to a tap"),
    Rule::any(SYS_recvfrom, "frames from passt"),
    Rule::any(SYS_recvmsg, "frames from passt"),
    Rule::any(SYS_sendto, "frames to passt"),
    Rule::any(SYS_sendmsg, "frames to passt"),
    Rule::any(SYS_shutdown, "the end of the way to passt"),
    Rule::only(
        SYS_ioctl,
        Condition::TUNSETOFFLOAD,
        "what the driver takes of a tap's checksums and segments",
    ),
];
