//! What goes wrong with the arena.

use guest_state::{ArenaMemory, GuestVirtAddr, MemoryError};
use thiserror::Error;

use guest_kernel::symbols::LookupError;

/// Why there is no arena. Probes work without: what can't be emulated is stepped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The kernel's page table can't be found by name.
    #[error(
        "the page table that maps the kernel can't be found; probes will step instead of using copies"
    )]
    NoTable(#[from] LookupError),
    /// The page table isn't in the image.
    #[error(
        "level3_kernel_pgt ({address}) is not a page of the kernel image as loaded; probes will step \
         instead of using copies. Check that the symbols belong to this kernel"
    )]
    NotLoaded {
        /// Its address by symbol.
        address: GuestVirtAddr,
    },
    /// The kernel uses what should be unused.
    #[error(
        "entry {index} of level3_kernel_pgt, which should be unused, is {entry:#x}: this kernel maps \
         something below its image; probes will step instead of using copies"
    )]
    InUse {
        /// Which entry.
        index: u64,
        /// What it is.
        entry: u64,
    },
    /// The page table doesn't map what it should.
    #[error(
        "entry {index} of level3_kernel_pgt is {entry:#x}, which leads to no page table: this is not \
         the table that maps the kernel; probes will step instead of using copies"
    )]
    NotTheTable {
        /// Which entry.
        index: u64,
        /// What it is.
        entry: u64,
    },
    /// The region can't hold an arena.
    #[error(
        "this guest memory can't hold the arena: {region:x?}; its parts have to be whole pages of \
         2 MiB, at most 1 GiB, and its tables whole pages of 4 KiB"
    )]
    BadRegion {
        /// The memory.
        region: ArenaMemory,
    },
    /// Guest memory can't be accessed.
    #[error("cannot access the guest's memory for the arena; check that the VM is still running")]
    Memory(#[from] MemoryError),
}

/// Why an instruction gets no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SlotError<E> {
    /// All slots have been given out.
    #[error(
        "all {slots} slots for copies of instructions are taken, {idle} of them by removed probes; \
         reclaim those while the guest is stopped, or remove probes"
    )]
    Full {
        /// How many there are.
        slots: usize,
        /// How many have no user.
        idle: usize,
    },
    /// The code doesn't fit.
    #[error(
        "{len} bytes of code don't fit in a slot of {}",
        super::areas::SLOT_LEN
    )]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The code can't be made.
    #[error("{0}")]
    Build(E),
    /// The region ends before the slot.
    #[error("the arena's memory for code has no room for more slots; remove probes")]
    NoRoom,
    /// Guest memory can't be accessed.
    #[error("cannot access the arena's memory; check that the VM is still running")]
    Memory(#[from] MemoryError),
}

/// Why a probe gets no detour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlaceError<E> {
    /// All addresses that its jump can lead to are taken, or there are none in the arena.
    #[error(
        "no free address in the arena fits the jump from {at}; {idle} detours of removed probes can be \
         reclaimed while the guest is stopped"
    )]
    NoAddress {
        /// The probed instruction.
        at: GuestVirtAddr,
        /// How many detours have no user.
        idle: usize,
    },
    /// All detours that there can be have been given out.
    #[error(
        "all {numbers} detours that have a counter are taken, {idle} of them by removed probes; reclaim \
         those while the guest is stopped, or remove probes"
    )]
    NoNumber {
        /// How many there can be.
        numbers: u32,
        /// How many detours have no user.
        idle: usize,
    },
    /// The code can't be made.
    #[error("{0}")]
    Build(E),
    /// Guest memory can't be accessed.
    #[error("cannot access the arena's memory; check that the VM is still running")]
    Memory(#[from] MemoryError),
}
