//! The system calls of a thread that prepares jumps or reads rings.

use libc::SYS_ioctl;

use super::condition::Condition;
use super::rule::Rule;

pub(super) const RULES: &[Rule] = &[Rule::only(
    SYS_ioctl,
    Condition::KVM_REQUEST,
    "registers of stopped vCPUs",
)];
