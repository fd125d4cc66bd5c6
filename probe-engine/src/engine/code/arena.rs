//! Executable memory of ours in the guest.

use guest_kernel::ImageMap;
use guest_kernel::symbols::Symbols;
use guest_state::{ArenaMemory, GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError};

use crate::arena::{Arena, HOLE, InstallError, MappedRam, SlotError};
use crate::detour::Trampoline;
use crate::engine::lock::{Lock, Rank};
use crate::engine::sites::site::Relocated;
use crate::insn::Decoded;
use crate::relocate;

/// The arena, once there is one, under its lock.
#[derive(Debug)]
pub(crate) struct CodeArena(Lock<Result<Box<Arena>, String>>);

impl CodeArena {
    pub(crate) fn new() -> Self {
        let why = "it has not been asked for".to_owned();
        Self(Lock::new(Rank::Arena, Err(why)))
    }

    /// Makes the arena, and returns the address of its trampoline.
    ///
    /// # Errors
    /// The guest's page tables are not as expected; [`Self::note`] tells it from then on.
    pub(crate) fn install(
        &self,
        memory: &dyn GuestMemory,
        image: &ImageMap,
        symbols: &Symbols,
        (region, ram): (ArenaMemory, Option<MappedRam>),
    ) -> Result<GuestVirtAddr, InstallError> {
        let mut state = self.0.lock();
        let installed = Arena::install(memory, image, symbols, region, ram);
        let arena = installed.inspect_err(|error| *state = Err(error.to_string()))?;
        let trampoline = arena.trampoline();
        *state = Ok(Box::new(arena));
        Ok(trampoline)
    }

    /// Looks at the arena, or changes it; `None` if there is none.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Arena) -> T) -> Option<T> {
        self.0.lock().as_mut().ok().map(|arena| look(arena))
    }

    /// Why there is no arena; empty when there is one.
    pub(crate) fn note(&self) -> String {
        self.0.lock().as_ref().err().cloned().unwrap_or_default()
    }

    /// Returns true if an address is where only the arena can be.
    pub(crate) fn covers(at: GuestVirtAddr) -> bool {
        HOLE.contains(&at)
    }

    /// Returns the instruction's copy: a new one, or the one that it had.
    pub(crate) fn copy_of(
        &self,
        memory: &dyn GuestMemory,
        code: &Decoded,
        original: &[u8],
        at: GuestVirtAddr,
    ) -> Result<Relocated, String> {
        const NO_PLACE: &str = "there is no place for a copy of it";
        let next = at.wrapping_add(original.len() as u64);
        let build = |to| {
            let copied = relocate::one(code, original, to)?;
            relocate::passing(&copied, next)
        };
        let copy = self.with(|arena| {
            let slot = arena.slot(memory, at, build).map_err(|error| match error {
                SlotError::Build(why) => why.to_owned(),
                other => other.to_string(),
            })?;
            // Only a displacement may have another length in the copy.
            let copied = relocate::one(code, original, slot.address)?;
            let end = slot.address.wrapping_add(copied.bytes.len() as u64);
            let end_phys = arena.to_phys(end).ok_or(NO_PLACE)?;
            Ok(Relocated {
                slot,
                end,
                end_phys,
            })
        });
        copy.unwrap_or_else(|| Err(NO_PLACE.to_owned()))
    }

    /// Returns true if there is room for this many more copies, or no arena: then no instruction gets one.
    pub(crate) fn has_room(&self, copies: usize) -> bool {
        self.with(|arena| arena.vacant() >= copies).unwrap_or(true)
    }

    /// How many detours no probe uses.
    pub(crate) fn idle_detours(&self) -> usize {
        self.with(|arena| arena.idle_detours()).unwrap_or(0)
    }

    /// Writes the code that calls return to that detours follow. Returns true if there is room for it.
    pub(crate) fn write_trampoline(
        &self,
        memory: &dyn GuestMemory,
        trampoline: &Trampoline,
    ) -> Result<bool, MemoryError> {
        let written = self.with(|arena| arena.write_trampoline(memory, trampoline));
        written.unwrap_or(Ok(false))
    }

    /// Forgets the copy and the detours of the instruction at `at`, whose text has gone.
    pub(crate) fn discard_copy(&self, at: GuestVirtAddr) {
        self.with(|arena| arena.discard(&(at..at.wrapping_add(1))));
    }

    /// Where an address of the arena is in guest memory.
    pub(crate) fn phys(&self, at: GuestVirtAddr) -> Option<GuestPhysAddr> {
        self.with(|arena| arena.to_phys(at))?
    }

    /// The number of the detour that an address is in.
    pub(crate) fn detour_at(&self, at: GuestVirtAddr) -> Option<u32> {
        self.with(|arena| Some(arena.detour_at(at)?.number))?
    }

    /// The instruction in whose copy `at` is, and where that is in guest memory.
    pub(crate) fn copy_around(&self, at: GuestVirtAddr) -> Option<(GuestVirtAddr, GuestPhysAddr)> {
        self.with(|arena| Some((arena.slot_at(at)?.at, arena.to_phys(at)?)))?
    }

    /// The instruction of the guest's that the code at `at` is a copy of.
    pub(crate) fn original(&self, at: GuestVirtAddr) -> Option<GuestVirtAddr> {
        self.with(|arena| {
            let in_slot = || Some(arena.slot_at(at)?.at);
            let in_detour = || arena.detour_at(at)?.original;
            in_slot().or_else(in_detour)
        })?
    }

    /// See [`Arena::way_out`].
    pub(crate) fn way_out(
        &self,
        at: GuestVirtAddr,
        sp: GuestVirtAddr,
        read: &mut dyn FnMut(GuestVirtAddr) -> Option<u64>,
    ) -> Option<(GuestVirtAddr, GuestVirtAddr)> {
        self.with(|arena| arena.way_out(at, sp, read))?
    }

    /// Returns true if an exception at `at` is that of a call that has pushed its return address already. At its own
    /// address, the call would not have pushed it.
    pub(crate) fn has_pushed(&self, at: GuestVirtAddr) -> bool {
        let pushed = self.with(|arena| arena.detour_at(at).is_some_and(|it| it.has_pushed));
        pushed.unwrap_or(false)
    }
}
