//! What a guest has for its detours.

use guest_kernel::percpu::Variables;
use guest_state::GuestVirtAddr;

/// What all detours of a guest have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// What leads from GS base to the vCPU's block ([`crate::ring::layout`]), modulo 2^64.
    pub block: u64,
    /// The first ring.
    pub rings: GuestVirtAddr,
    /// Where the kernel has its current task, and what a task tells.
    pub variables: Variables,
    /// What return probes need.
    pub following: Option<Following>,
}

/// What is there for following calls, see [`crate::calls`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Following {
    /// The table of calls.
    pub table: GuestVirtAddr,
    /// The shared code that [`super::trampoline`] makes: calls that are followed return here.
    pub trampoline: GuestVirtAddr,
}
