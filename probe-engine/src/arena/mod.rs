//! Executable memory that the guest doesn't know.
//!
//! x86-64 Linux keeps the 2 GiB of virtual addresses below the kernel image unused
//! (`Documentation/arch/x86/x86_64/mm.rst`: "ffffffff00000000 ... unused hole"). They are entries
//! 508 and 509 of `level3_kernel_pgt`, the table through which every address space maps the kernel
//! image. The arena points these two entries at page tables of its own, in a region of guest
//! physical memory that the monitor sets aside. That needs no TLB flush, as processors don't remember
//! that there was no page.
//!
//! The kernel's own search for pages that are writable and executable
//! (`arch/x86/mm/dump_pagetables.c`) goes by what all levels together permit, and finds none. It reads
//! page tables through the kernel's direct mapping of physical memory, where the arena's memory isn't.
//! So the two page directories, all that there is of tables, lie below 1 MiB, which the kernel always
//! maps (`arch/x86/mm/init.c`, `init_mem_mapping`) and, but for its firmware's part, never uses. All
//! else is mapped at once, by pages of 2 MiB: what is not used takes no memory of the host's.
//!
//! The guest can't be trusted with any of this: it may overwrite the entries, the tables and the
//! data. What is where is therefore kept here and never read back.

mod error;
mod reclaim;
mod slots;
mod tables;

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::addr::{GuestPhysAddr, GuestVirtAddr};
use crate::guest::{GuestMemory, MemoryError};
use crate::image_map::ImageMap;
use crate::symbols::Symbols;

pub use error::{InstallError, SlotError};
pub use slots::{Inside, SLOT_LEN, Slot};

use slots::{SLOTS, Slots};
use tables::Tables;

/// The addresses that the kernel leaves unused.
pub const HOLE: Range<GuestVirtAddr> =
    GuestVirtAddr(0xffff_ffff_0000_0000)..GuestVirtAddr(0xffff_ffff_8000_0000);

/// The top of the hole, where slots are. From anywhere in these 8 MiB a jump reaches all of the
/// image and of the modules' area, which ends at ffffffffff000000.
pub const SLOT_AREA: Range<GuestVirtAddr> =
    GuestVirtAddr(HOLE.end.0 - SLOTS as u64 * SLOT_LEN as u64)..HOLE.end;

/// The guest physical memory that the arena lives in: nothing else is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Two pages for tables, in memory that the kernel maps directly.
    pub tables: GuestPhysAddr,
    /// What is executed: the top of the hole. The guest need not be able to write there.
    pub code: Part,
    /// What is written by the guest: the bottom of the hole.
    pub data: Part,
}

/// A stretch of guest physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its first address, a multiple of 2 MiB.
    pub phys: GuestPhysAddr,
    /// Its length in bytes, a multiple of 2 MiB, at most 1 GiB. Slots need 8 MiB.
    pub len: u64,
}

/// The memory in the hole, and the slots in it.
///
/// Methods that only look are cheap: [`Arena::slot_at`] is an index into an array.
#[derive(Debug)]
pub struct Arena {
    tables: Tables,
    slots: Slots,
}

impl Arena {
    /// Builds page tables in `region` and points the kernel's at them. The image has to be in memory;
    /// the kernel need not have begun to run.
    ///
    /// Installing again in the same region, as after a restart of the guest, begins with an empty
    /// arena: nothing may be executing in the old one.
    ///
    /// # Errors
    /// See [`InstallError`]; nothing of the guest's has been changed then, and probes work without an
    /// arena, only slower.
    pub fn install(
        memory: &dyn GuestMemory,
        image: &ImageMap,
        symbols: &Symbols,
        region: Region,
    ) -> Result<Self, InstallError> {
        let tables = Tables::find(memory, image, symbols, region)?;
        let trampoline = tables.to_phys(slots::TRAMPOLINE.address);
        let trampoline = trampoline.ok_or(InstallError::BadRegion { region })?;
        memory.write(trampoline, &[slots::INT3; SLOT_LEN])?;
        tables.install(memory)?;
        Ok(Self {
            tables,
            slots: Slots::default(),
        })
    }

    /// Whether the kernel's page tables still lead to the arena. They don't if the kernel image has
    /// been written anew, or the guest has tampered with them.
    ///
    /// # Errors
    /// They can't be read.
    pub fn is_intact(&self, memory: &dyn GuestMemory) -> Result<bool, MemoryError> {
        self.tables.is_intact(memory)
    }

    /// Where an address in the hole is in physical memory, if anything is there.
    pub fn to_phys(&self, at: GuestVirtAddr) -> Option<GuestPhysAddr> {
        self.tables.to_phys(at)
    }

    /// The slot for the instruction at `at`: the one that it has or had, else a new one, with the
    /// code that `build` makes for the slot's address. Each call has to be matched by a
    /// [`Arena::release`].
    ///
    /// A slot that the instruction had is found again if it holds what `build` makes, so the same
    /// instruction may be probed and released any number of times without using anything up, and
    /// whoever is still executing in a slot always finds the code that he came for.
    ///
    /// # Errors
    /// See [`SlotError`]. After [`SlotError::Full`], stop the guest, [`Arena::reclaim`], and try again.
    pub fn slot<E>(
        &mut self,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
        build: impl Fn(GuestVirtAddr) -> Result<Vec<u8>, E>,
    ) -> Result<Slot, SlotError<E>> {
        if let Some(slot) = self.slots.again(at, &build)? {
            return Ok(slot);
        }
        let slot = self.slots.vacant().ok_or_else(|| SlotError::Full {
            slots: SLOTS,
            idle: self.slots.idle(),
        })?;
        let code = build(slot.address).map_err(SlotError::Build)?;
        let bytes = slots::padded(&code).ok_or(SlotError::TooLong { len: code.len() })?;
        let place = self.tables.to_phys(slot.address).ok_or(SlotError::NoRoom)?;
        memory.write(place, &bytes)?;
        self.slots.occupy(slot, at, code);
        Ok(slot)
    }

    /// How many slots have never been given out, or were reclaimed.
    pub fn vacant(&self) -> usize {
        self.slots.vacancies()
    }

    /// Ends one use of a slot. Its code stays, because a vCPU or a preempted task may be in it.
    pub fn release(&mut self, slot: Slot) {
        self.slots.release(slot);
    }

    /// Forgets which instructions in `range` had slots: the text there has gone, and another may
    /// come to the same addresses. The slots stay as they are until they are reclaimed.
    pub fn discard(&mut self, range: &Range<GuestVirtAddr>) {
        self.slots.discard(range);
    }

    /// Makes idle slots that nobody can be in free for other instructions, and says how many. Needed
    /// only when [`Arena::slot`] finds none; it reads all of the guest's memory.
    ///
    /// Nobody is in a slot if no vCPU is (`rips`) and no aligned 8-byte word of memory (`ram`: start
    /// and length in bytes of each range, multiples of 8) holds an address in it: a task that was interrupted there
    /// has RIP on its kernel stack. A number that only looks like such an address keeps a slot too,
    /// which does no harm. Call it while the guest is stopped.
    ///
    /// # Errors
    /// Part of the memory can't be read. No slot is freed then.
    pub fn reclaim(
        &mut self,
        memory: &dyn GuestMemory,
        ram: &[(GuestPhysAddr, u64)],
        rips: &[u64],
    ) -> Result<usize, MemoryError> {
        let mentioned = reclaim::mentioned(memory, ram, rips)?;
        Ok(self.slots.free(&mentioned))
    }

    /// What there is at an address, if it is in a slot that has been given out.
    pub fn slot_at(&self, rip: GuestVirtAddr) -> Option<Inside> {
        self.slots.at(rip)
    }

    /// An address with an int3 that is nothing else, for functions to return to. Always the same.
    pub fn trampoline(&self) -> GuestVirtAddr {
        slots::TRAMPOLINE.address
    }
}
