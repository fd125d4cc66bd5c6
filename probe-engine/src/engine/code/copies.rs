//! Copies of instructions in the arena.

use guest_state::{
    ArenaMemory, GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError, StoppedGuest, VcpuId,
};

use crate::arena::{self, Arena, InstallError, SlotError};
use crate::engine::Engine;
use crate::engine::sites::site::Relocated;
use crate::insn::Code;
use crate::relocate;

/// The arena, or why there is none.
#[derive(Debug)]
pub(crate) enum ArenaState {
    None(String),
    Installed(Box<Arena>),
}

impl Default for ArenaState {
    fn default() -> Self {
        Self::None("the kernel's place in guest memory is not known yet".to_owned())
    }
}

/// Where all vCPUs are, if that can be told.
pub(crate) fn rips(guest: &dyn StoppedGuest) -> Option<Vec<u64>> {
    let rip = |vcpu| Some(guest.registers(vcpu).ok()?.rip);
    (0..guest.vcpus()).map(VcpuId).map(rip).collect()
}

impl Engine {
    /// Makes executable memory of ours in the guest. Without it every probe works
    /// that can be emulated or stepped in place, and there are no return probes.
    ///
    /// # Errors
    /// The guest's page tables are not as expected; [`Self::arena_note`] tells it
    /// from then on.
    pub fn install_arena(
        &self,
        guest: &dyn StoppedGuest,
        region: ArenaMemory,
    ) -> Result<(), InstallError> {
        let table = self.table();
        let Some(image) = &table.image else {
            return Ok(());
        };
        let memory = guest.memory();
        let mut state = self.arena.lock();
        match Arena::install(memory, image, &self.kernel.symbols, region) {
            Ok(arena) => {
                self.returns.lock().trampoline = Some(arena.trampoline());
                *state = ArenaState::Installed(Box::new(arena));
                Ok(())
            }
            Err(error) => {
                *state = ArenaState::None(error.to_string());
                Err(error)
            }
        }
    }

    /// Why there is no executable memory of ours in the guest; empty when there is.
    pub fn arena_note(&self) -> String {
        match &*self.arena.lock() {
            ArenaState::None(why) => why.clone(),
            ArenaState::Installed(_) => String::new(),
        }
    }

    /// The instruction's copy in the arena: a new one, or the one that it had.
    pub(crate) fn copy_of(
        &self,
        memory: &dyn GuestMemory,
        code: &Code,
        original: &[u8],
        at: GuestVirtAddr,
    ) -> Result<Relocated, String> {
        let next = at.wrapping_add(original.len() as u64);
        let build = |to| {
            let copied = relocate::one(code, original, to)?;
            relocate::passing(&copied, next)
        };
        match &mut *self.arena.lock() {
            ArenaState::None(_) => Err("there is no place for a copy of it".to_owned()),
            ArenaState::Installed(arena) => {
                let slot = arena.slot(memory, at, build).map_err(|error| match error {
                    SlotError::Build(why) => why.to_owned(),
                    other => other.to_string(),
                })?;
                // Only a displacement may have another length in the copy.
                let copied = relocate::one(code, original, slot.address)?;
                let end = slot.address.wrapping_add(copied.bytes.len() as u64);
                let end_phys = arena.to_phys(end);
                Ok(Relocated {
                    slot,
                    end,
                    end_phys: end_phys.ok_or("there is no place for a copy of it")?,
                })
            }
        }
    }

    /// Returns true if there is room for so many more copies.
    pub(crate) fn has_room(&self, copies: usize) -> bool {
        match &*self.arena.lock() {
            ArenaState::None(_) => true,
            ArenaState::Installed(arena) => arena.vacant() >= copies,
        }
    }

    /// Has room for so many more copies, if need be by giving up those that no probe and nobody in
    /// the guest uses.
    pub(crate) fn make_room(&self, guest: &dyn StoppedGuest, copies: usize) {
        if !self.has_room(copies) {
            self.reclaim(guest);
        }
    }

    /// Gives up copies and detours that no probe and nobody in the guest uses.
    ///
    /// A number of a detour that is given out again has had everything read that was recorded under it,
    /// and counted: who would record more is nowhere.
    pub(crate) fn reclaim(&self, guest: &dyn StoppedGuest) {
        let memory = guest.memory();
        self.settle(memory);
        let (Ok(kept), Some(rips)) = (self.recording(memory), rips(guest)) else {
            return;
        };
        let mut reader = self.reader.lock();
        if let ArenaState::Installed(arena) = &mut *self.arena.lock() {
            // Where memory can't be read nothing is given up, and instructions that get no copy
            // are stepped in place.
            let _freed = arena.reclaim(memory, &guest.ram(), &rips, &kept);
            if let Some(reader) = &mut *reader {
                reader.forget_detours(memory, |number| !arena.has_detour(number));
            }
        }
    }

    /// Writes what calls return to that detours follow; whether there is room for it.
    pub(crate) fn write_trampoline(
        &self,
        memory: &dyn GuestMemory,
        code: &[u8],
    ) -> Result<bool, MemoryError> {
        match &*self.arena.lock() {
            ArenaState::None(_) => Ok(false),
            ArenaState::Installed(arena) => arena.write_trampoline(memory, code),
        }
    }

    /// The text of the instruction at `at` is no more.
    pub(crate) fn discard_copy(&self, at: GuestVirtAddr) {
        if let ArenaState::Installed(arena) = &mut *self.arena.lock() {
            arena.discard(&(at..at.wrapping_add(1)));
        }
    }

    /// Where an address of the arena is in guest memory.
    pub(crate) fn arena_phys(&self, at: GuestVirtAddr) -> Option<GuestPhysAddr> {
        match &*self.arena.lock() {
            ArenaState::None(_) => None,
            ArenaState::Installed(arena) => arena.to_phys(at),
        }
    }

    /// The number of the detour that an address is in.
    pub(crate) fn detour_at(&self, at: GuestVirtAddr) -> Option<u32> {
        match &*self.arena.lock() {
            ArenaState::None(_) => None,
            ArenaState::Installed(arena) => Some(arena.detour_at(at)?.number),
        }
    }

    /// Whether an address is where only the arena can be.
    pub(crate) fn arena_covers(&self, at: GuestVirtAddr) -> bool {
        arena::HOLE.contains(&at)
    }

    /// The instruction in whose copy `at` is, and where that is in guest memory.
    pub(crate) fn copy_around(&self, at: GuestVirtAddr) -> Option<(GuestVirtAddr, GuestPhysAddr)> {
        match &*self.arena.lock() {
            ArenaState::None(_) => None,
            ArenaState::Installed(arena) => Some((arena.slot_at(at)?.at, arena.to_phys(at)?)),
        }
    }
}
