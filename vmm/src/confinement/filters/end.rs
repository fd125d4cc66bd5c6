//! The system calls of the thread that waits for the guest's end, beside those of its devices.

use libc::{
    SYS_ioctl, SYS_kill, SYS_newfstatat, SYS_pidfd_open, SYS_pidfd_send_signal, SYS_poll,
    SYS_ppoll, SYS_unlink, SYS_wait4, SYS_waitid,
};

use super::condition::Condition;
use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[
    Rule::only(
        SYS_ioctl,
        Condition::KVM_REQUEST,
        "registers of stopped vCPUs",
    ),
    Rule::any(
        SYS_newfstatat,
        "a socket's file is still the one that was made",
    ),
    Rule::any(SYS_unlink, "a socket's file goes with the VM"),
    Rule::any(SYS_kill, "the passt of a VM ends with it"),
    Rule::any(SYS_pidfd_send_signal, "the passt of a VM ends with it"),
    Rule::any(
        SYS_pidfd_open,
        "the end of passt is waited for, with a limit",
    ),
    Rule::any(SYS_poll, "the end of passt is waited for, with a limit"),
    Rule::any(SYS_ppoll, "the end of passt is waited for, with a limit"),
    Rule::any(SYS_wait4, "the passt of a VM ends with it"),
    Rule::any(SYS_waitid, "the passt of a VM ends with it"),
];
