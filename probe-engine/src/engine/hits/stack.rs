//! The stack of a hit's task.
//!
//! At a breakpoint it is unwound while the vCPU stands still. A jump's record has a piece of the stack, which is
//! unwound when it is read.

use guest_kernel::unwind::{Foreign, Surroundings};
use guest_state::{GuestMemory, GuestVirtAddr, Registers, Tsc};

use crate::arena::TRAMPOLINE;
use crate::calls::Calls;
use crate::engine::Engine;

/// When a stack was as it is read, and so whose return addresses ours stand in the places of.
#[derive(Clone, Copy)]
pub(crate) enum Moment {
    /// Now. Calls that detours follow are in this table.
    Now(Option<Calls>),
    /// At this time. The detour has put return addresses back, but those that breakpoints have replaced.
    Before(Tsc),
}

impl Engine {
    /// The return addresses on a stack, the innermost first, at most so many. The first is RIP itself.
    ///
    /// `read` reads the stack. `task` is whose stack it is; its memory and the guest's tables are read by `memory`.
    pub(crate) fn stack(
        &self,
        start: &Registers,
        task: Option<u64>,
        (memory, moment): (&dyn GuestMemory, Moment),
        read: &mut dyn FnMut(GuestVirtAddr) -> Option<u64>,
        most: u32,
    ) -> Box<[u64]> {
        let Ok(unwinder) = &self.kernel.unwind else {
            return Box::default();
        };
        let mut foreign = |at: GuestVirtAddr, slot: GuestVirtAddr| {
            let caller = match moment {
                Moment::Now(calls) if at == TRAMPOLINE => {
                    Some(calls?.caller_at(memory, slot.0).ok()??)
                }
                Moment::Now(_) if self.returns.trampoline() == Some(at) => {
                    Some(self.returns.leads_to(slot.0, at.0))
                }
                Moment::Before(time) if self.returns.trampoline() == Some(at) => {
                    Some(self.returns.led_to(slot.0, time)?)
                }
                _ => None,
            };
            if let Some(caller) = caller {
                return Some(Foreign::Returned {
                    original: GuestVirtAddr(caller),
                });
            }
            let original = self.arena.original(at)?;
            let pushed = match self.arena.has_pushed(at) {
                true => size_of::<u64>() as u64,
                false => 0,
            };
            Some(Foreign::Copy { original, pushed })
        };
        let around = Surroundings {
            memory: read,
            foreign: &mut foreign,
            task: task.map(GuestVirtAddr),
        };
        let trace = unwinder.unwind(start, around, most as usize);
        trace.addresses.iter().map(|at| at.0).collect()
    }
}
