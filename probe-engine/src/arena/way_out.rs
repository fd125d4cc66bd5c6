//! Where generated code in the arena leads to.

use guest_state::GuestVirtAddr;

use super::{Arena, TRAMPOLINE};
use crate::detour::{Trampoline, WayOut};

/// How deep routines of ours call each other: the code that calls return to, a detour's routine for values, one that
/// copies memory, one that translates an address.
const DEEPEST: usize = 4;
/// Bytes of a return address.
const WORD: u64 = 8;

impl Arena {
    /// Returns the address of the guest's at which execution goes on after code of ours, and the stack pointer then.
    /// `at` is an address in the code, and `sp` the stack pointer there. [`TRAMPOLINE`] stands for what a followed call
    /// returns to, where the stack doesn't tell that yet. `read` reads the stack.
    pub fn way_out(
        &self,
        mut at: GuestVirtAddr,
        mut sp: GuestVirtAddr,
        read: &mut dyn FnMut(GuestVirtAddr) -> Option<u64>,
    ) -> Option<(GuestVirtAddr, GuestVirtAddr)> {
        let mut found = None;
        for _ in 0..DEEPEST {
            let Some((way, start)) = self.way_out_at(at) else {
                break;
            };
            match way {
                WayOut::Guest { offset, grown } => {
                    at = self
                        .detours
                        .at(start.wrapping_add(offset.into()))?
                        .original?;
                    return Some((at, sp.wrapping_add(grown.cast_unsigned())));
                }
                WayOut::Return { above } => {
                    let slot = sp.wrapping_add(above.cast_unsigned());
                    at = GuestVirtAddr(read(slot)?);
                    sp = slot.wrapping_add(WORD);
                }
            }
            if self
                .trampoline_offset(at)
                .is_some_and(Trampoline::is_return)
            {
                return Some((TRAMPOLINE, sp));
            }
            found = Some((at, sp));
        }
        found
    }

    fn way_out_at(&self, at: GuestVirtAddr) -> Option<(WayOut, GuestVirtAddr)> {
        match (self.trampoline_offset(at), &self.trampoline) {
            (Some(offset), Some(trampoline)) => Some((trampoline.way_out(offset)?, TRAMPOLINE)),
            _ => self.detours.way_out(at),
        }
    }

    /// The offset of an address in the code that calls return to.
    fn trampoline_offset(&self, at: GuestVirtAddr) -> Option<u32> {
        let trampoline = self.trampoline.as_ref()?;
        let offset = at.offset_from(TRAMPOLINE)?;
        let is_inside = offset < trampoline.code.len() as u64;
        is_inside.then_some(offset as u32)
    }
}
