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
//! else is mapped at once, by pages of 2 MiB: what is not used takes no memory of the host's. Data is
//! mapped at several addresses, code at one only and never writable.
//!
//! Springboards for jumps in modules have to be elsewhere: see [`MODULE_BOARDS`]. The first of them, placed long after
//! the kernel's start, has the first pages of the code mapped there once more.
//!
//! The guest can't be trusted with any of this: it may overwrite the entries, the tables and the
//! data. What is where is therefore kept here and never read back.

mod areas;
mod data;
mod detours;
mod error;
mod ram_window;
mod reclaim;
mod slots;
mod space;
mod tables;
mod way_out;
mod write_detour;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ops::Range;

use guest_state::x86_64::INT3;
use guest_state::{ArenaMemory, GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError, PhysRange};

use guest_kernel::ImageMap;
use guest_kernel::symbols::Symbols;

pub use areas::{BLOCKS, CALLS, HOLE, MODULE_BOARDS, RAM_WINDOW, RINGS, SLOT_AREA, SLOT_LEN};
pub use data::blocks_len;
pub use detours::{InDetour, Placed};
pub use error::{InstallError, PlaceError, SlotError};
pub use ram_window::MappedRam;
pub use slots::{Inside, Slot};
pub use space::{Placement, Space};

use crate::detour::Trampoline;

use areas::SLOTS;
use detours::Detours;
use slots::Slots;
use tables::ArenaTables;

/// The code that the calls return to that detours follow, one for all of them. The calls that breakpoints follow return
/// to an int3 right behind it.
pub const TRAMPOLINE: GuestVirtAddr =
    GuestVirtAddr(slots::TRAMPOLINE.0 - crate::calls::layout::TRAMPOLINE_LEN);

/// Returns true if an address can be one of the arena's code.
pub(crate) fn is_ours(at: GuestVirtAddr) -> bool {
    HOLE.contains(&at) || MODULE_BOARDS.contains(&at)
}

/// Code that writes records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordingCode {
    /// The detour of this number.
    Detour(u32),
    /// What followed calls return to, without its first instruction: each of these calls has the address of that on its
    /// stack.
    Trampoline,
}

/// A slot or a detour, by its number.
#[derive(PartialEq, Eq, Hash)]
enum Owner {
    Slot(usize),
    Detour(u32),
}

/// The memory in the hole, and the slots and detours in it.
///
/// Methods that only look are cheap: [`Arena::slot_at`] is an index into an array.
#[derive(Debug)]
pub struct Arena {
    tables: ArenaTables,
    slots: Slots,
    detours: Detours,
    /// What is at [`TRAMPOLINE`].
    trampoline: Option<Trampoline>,
}

impl Arena {
    /// Builds page tables in `region` and points the kernel's at them. The image has to be in memory;
    /// the kernel need not have begun to run.
    ///
    /// Of the data the first [`blocks_len`] bytes are at [`BLOCKS`], the next 16 MiB at [`CALLS`], and then come the
    /// vCPUs' rings, one after the other. What shorter memory doesn't hold isn't mapped.
    /// Code and data are whole pages of 2 MiB, at most 1 GiB each; slots need 8 MiB of code.
    ///
    /// `ram` is mapped at [`RAM_WINDOW`] once more, read-only.
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
        region: ArenaMemory,
        ram: Option<MappedRam>,
    ) -> Result<Self, InstallError> {
        let tables = ArenaTables::find(memory, image, symbols, region, ram)?;
        let trampoline = tables.to_phys(slots::TRAMPOLINE);
        let trampoline = trampoline.ok_or(InstallError::BadRegion { region })?;
        memory.write(trampoline, &[INT3; SLOT_LEN])?;
        tables.install(memory)?;
        let boards_len = tables.boards_len();
        Ok(Self {
            tables,
            slots: Slots::default(),
            detours: Detours::new(region.code.len, boards_len),
            trampoline: None,
        })
    }

    /// Returns true if the kernel's page tables still lead to the arena. They don't if the kernel image has been
    /// written anew, or the guest has tampered with them.
    ///
    /// # Errors
    /// They can't be read.
    pub fn is_intact(&self, memory: &dyn GuestMemory) -> Result<bool, MemoryError> {
        self.tables.is_intact(memory)
    }

    /// The guest's RAM that is mapped at [`RAM_WINDOW`], if it could be.
    pub fn mapped_ram(&self) -> Option<MappedRam> {
        self.tables.ram()
    }

    /// Where an address of the arena is in physical memory, if anything is there.
    pub fn to_phys(&self, at: GuestVirtAddr) -> Option<GuestPhysAddr> {
        self.tables.to_phys(at)
    }

    /// Returns the slot for the instruction at `at`: the one that it has or had, else a new one, with the code that
    /// `build` makes for the slot's address.
    ///
    /// A slot that the instruction had is found again if it holds what `build` makes, so the same instruction may be
    /// probed any number of times without using anything up, and a task that is still executing in a slot always finds
    /// the code that it came for.
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
        let number = self.slots.vacant().ok_or_else(|| SlotError::Full {
            slots: SLOTS,
            idle: self.slots.idle(),
        })?;
        let address = slots::address(number);
        let code = build(address).map_err(SlotError::Build)?;
        let bytes = slots::padded(&code).ok_or(SlotError::TooLong { len: code.len() })?;
        let place = self.tables.to_phys(address).ok_or(SlotError::NoRoom)?;
        memory.write(place, &bytes)?;
        Ok(self.slots.occupy(number, at, code))
    }

    /// How many slots have never been given out, or were reclaimed.
    pub fn vacant(&self) -> usize {
        self.slots.vacancies()
    }

    /// Forgets which instructions in `range` had slots and detours: the text there has gone, and another may come to
    /// the same addresses. The slots and detours stay as they are until they are reclaimed.
    pub fn discard(&mut self, range: &Range<GuestVirtAddr>) {
        self.slots.discard(range);
        self.detours.discard(range);
    }

    /// Frees idle slots and detours that no task can be in, for other instructions, and returns how many. Needed only
    /// when [`Arena::slot`] or [`Arena::detour`] finds none; it reads all of the guest's memory. Numbers of detours are
    /// given out again, so what the guest has recorded under them has to have been read before.
    ///
    /// No task is in a slot if no vCPU is (`rips`) and no aligned 8-byte word of memory (`ram`: start and length in
    /// bytes of each range, multiples of 8) holds an address in it: a task that was interrupted there has RIP on its
    /// kernel stack. A number that only looks like such an address keeps a slot too, which does no harm. Nor is a
    /// detour free in which one of the calls that are `followed` began. Call it while the guest is stopped.
    ///
    /// # Errors
    /// Part of the memory can't be read. No slot is freed then.
    pub fn reclaim(
        &mut self,
        memory: &dyn GuestMemory,
        ram: &[PhysRange],
        rips: &[u64],
        followed: &[u32],
    ) -> Result<usize, MemoryError> {
        let mentioned = reclaim::mentioned(memory, ram, rips, |at| self.owner(at))?;
        let kept = |owner| mentioned.contains(&owner);
        let slots = self.slots.free(|number| kept(Owner::Slot(number)));
        let detours = self
            .detours
            .free(|number| followed.contains(&number) || kept(Owner::Detour(number)));
        Ok(slots + detours)
    }

    /// Returns the code in which a task may be, found as [`Arena::reclaim`] does.
    ///
    /// # Errors
    /// Part of the memory can't be read.
    pub fn inside(
        &self,
        memory: &dyn GuestMemory,
        ram: &[PhysRange],
        rips: &[u64],
    ) -> Result<HashSet<RecordingCode>, MemoryError> {
        let trampoline = TRAMPOLINE.wrapping_add(1)..self.trampoline();
        reclaim::mentioned(memory, ram, rips, |at| match trampoline.contains(&at) {
            true => Some(RecordingCode::Trampoline),
            false if is_ours(at) => self.detours.number_at(at).map(RecordingCode::Detour),
            false => None,
        })
    }

    /// Returns true if there is a detour of this number.
    pub fn has_detour(&self, number: u32) -> bool {
        self.detours.has(number)
    }

    /// How many detours have no user.
    pub fn idle_detours(&self) -> usize {
        self.detours.idle()
    }

    /// What an address in the hole belongs to.
    fn owner(&self, at: GuestVirtAddr) -> Option<Owner> {
        if !is_ours(at) {
            return None;
        }
        let detour = || self.detours.number_at(at).map(Owner::Detour);
        slots::number_at(at).map(Owner::Slot).or_else(detour)
    }

    /// What there is at an address, if it is in a slot that has been given out.
    pub fn slot_at(&self, rip: GuestVirtAddr) -> Option<Inside> {
        self.slots.at(rip)
    }

    /// Writes the code that is at [`TRAMPOLINE`]; returns false if there is no room for it. No task may be in it.
    ///
    /// # Errors
    /// The arena isn't memory.
    pub fn write_trampoline(
        &mut self,
        memory: &dyn GuestMemory,
        trampoline: &Trampoline,
    ) -> Result<bool, MemoryError> {
        let place = self.to_phys(TRAMPOLINE);
        let fits = trampoline.code.len() as u64 <= crate::calls::layout::TRAMPOLINE_LEN;
        let Some(place) = place.filter(|_| fits) else {
            return Ok(false);
        };
        memory.write(place, &trampoline.code)?;
        self.trampoline = Some(trampoline.clone());
        Ok(true)
    }

    /// An address with an int3 that has no other use, for functions to return to. Always the same.
    pub fn trampoline(&self) -> GuestVirtAddr {
        slots::TRAMPOLINE
    }
}
