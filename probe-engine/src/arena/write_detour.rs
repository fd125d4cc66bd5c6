//! Giving detours out, and writing them into the guest.

use std::collections::BTreeSet;

use guest_state::x86_64::{INT3, jmp_rel32};
use guest_state::{GuestMemory, GuestVirtAddr, MemoryError};

use super::Arena;
use super::areas::MODULE_BOARDS;
use super::detours::{Detours, InDetour, PAGE, Placed, parts};
use super::error::PlaceError;
use super::space::Placement;
use crate::detour::{Detour, Pattern};

/// The modules' space, in any kernel (`Documentation/arch/x86/x86_64/mm.rst`).
const IN_MODULES: std::ops::Range<u64> = 0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000;

impl Arena {
    /// Returns the detour for the probe at `at`, whose jump has to have `pattern`: the one that it has or had, else a
    /// new one, with what `build` makes for a number and an address.
    ///
    /// Detours that the probe had are used again but for those with the `busy` numbers; a new one has a
    /// number below `numbers`.
    ///
    /// Memory in which a detour is doesn't change, so the guest may run; no task comes to a new detour before the jump
    /// is written. Bytes between detours are int3s.
    ///
    /// # Errors
    /// See [`PlaceError`].
    pub fn detour<E>(
        &mut self,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
        pattern: Pattern,
        (numbers, busy): (u32, &BTreeSet<u32>),
        build: impl Fn(u32, GuestVirtAddr) -> Result<Detour, E>,
    ) -> Result<Placed, PlaceError<E>> {
        let found = self.detours.again(at, pattern, busy, &build);
        if let Some(placed) = found.map_err(PlaceError::Build)? {
            return Ok(placed);
        }
        let no_address = |detours: &Detours| PlaceError::NoAddress {
            at,
            idle: detours.idle(),
        };
        if IN_MODULES.contains(&at.0) && self.tables.open_boards(memory)? {
            self.detours.space.add_boards(&MODULE_BOARDS);
        }
        let Some(number) = self.detours.number(numbers) else {
            let idle = self.detours.idle();
            return Err(PlaceError::NoNumber { numbers, idle });
        };
        let (placement, detour) = self
            .detours
            .build(at, pattern, |place| build(number, place))?;
        let jump = pattern.jump(at, placement.target);
        let written = self.write_detour(memory, placement, &detour);
        let Some(jump) = jump.filter(|_| matches!(written, Ok(true))) else {
            self.detours.space.undo(placement, detour.code.len());
            written?;
            return Err(no_address(&self.detours));
        };
        let occupant = self.detours.occupy(number, at, placement, detour);
        Ok(occupant.placed(number, jump))
    }

    /// What there is at an address, if it is in a detour that has been given out.
    pub fn detour_at(&self, rip: GuestVirtAddr) -> Option<InDetour> {
        self.detours.at(rip)
    }

    /// How many detours there are, and the pages of 4 KiB of the host's memory that they have taken.
    pub fn detours(&self) -> (usize, usize) {
        (self.detours.len(), self.detours.pages.len())
    }

    /// Writes a detour; returns false if there is no memory for it.
    fn write_detour(
        &mut self,
        memory: &dyn GuestMemory,
        placement: Placement,
        detour: &Detour,
    ) -> Result<bool, MemoryError> {
        let springboard = jmp_rel32(placement.target, placement.code).unwrap_or_default();
        for (start, len) in parts(placement, detour.code.len()) {
            let end = start.wrapping_add(len as u64);
            let (first, last) = (start.0 / PAGE as u64, (end.0 - 1) / PAGE as u64);
            for page in first..=last {
                let Some(phys) = self.to_phys(GuestVirtAddr(page * PAGE as u64)) else {
                    return Ok(false);
                };
                if !self.detours.pages.contains(&page) {
                    memory.write(phys, &[INT3; PAGE])?;
                    self.detours.pages.insert(page);
                }
            }
            let Some(phys) = self.to_phys(start) else {
                return Ok(false);
            };
            let bytes = match start == placement.code {
                true => &detour.code[..],
                false => &springboard[..],
            };
            memory.write(phys, bytes)?;
        }
        Ok(true)
    }
}
