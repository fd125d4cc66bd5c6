//! What a guest has for its detours.

use guest_kernel::percpu::Variables;
use guest_state::{GuestVirtAddr, PhysRange};

/// What all detours of a guest have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// The distance from GS base to the vCPU's block ([`crate::ring::layout`]), modulo 2^64.
    pub block: u64,
    /// The first ring.
    pub rings: GuestVirtAddr,
    /// Where the kernel has its current task and other variables of a CPU, and where a task has its
    /// members.
    pub variables: Variables,
    /// What return probes need.
    pub following: Option<Following>,
    /// How pointers are followed, if they can be.
    pub pointers: Option<Pointers>,
}

/// How a detour reads memory that a pointer leads to: it translates the pointer by the guest's page tables, and
/// reads the physical address where the arena maps all RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointers {
    /// Where physical address 0 would be in that mapping.
    pub window: u64,
    /// The RAM that is mapped there, whole pages; the second range is empty where there is but one.
    pub ram: [PhysRange; 2],
    /// Where the kernel has its direct mapping of physical memory (`page_offset_base`): a pointer into it is translated
    /// by a subtraction.
    pub direct_map: u64,
    /// Levels of the kernel's page tables: 4 or 5.
    pub levels: u8,
    /// Where page tables begin.
    pub root: Root,
}

/// Where page tables begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// Where CR3 says.
    Cr3,
    /// At this physical address: for code that runs where CR3 can't be read.
    Fixed(u64),
}

/// The memory and the code for following calls, see [`crate::calls`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Following {
    /// The table of calls.
    pub table: GuestVirtAddr,
    /// The shared code that [`super::trampoline`] makes: calls that are followed return here.
    pub trampoline: GuestVirtAddr,
}
