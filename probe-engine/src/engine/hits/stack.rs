//! The stack of a hit's task.
//!
//! At a breakpoint it is unwound while the vCPU stands still. A jump's record has a piece of the stack, which is
//! unwound when it is read.

use guest_kernel::unwind::{Foreign, Surroundings};
use guest_state::{GuestMemory, GuestVirtAddr, Registers};

use crate::arena::TRAMPOLINE;
use crate::calls::Calls;
use crate::engine::Engine;

impl Engine {
    /// The return addresses on a stack, the innermost first, at most so many. The first is RIP itself.
    ///
    /// `read` reads the stack. `task` is whose stack it is; its memory and the guest's tables are read by `memory`.
    pub(crate) fn stack(
        &self,
        start: &Registers,
        task: Option<u64>,
        (memory, calls): (&dyn GuestMemory, Option<Calls>),
        read: &mut dyn FnMut(GuestVirtAddr) -> Option<u64>,
        most: u32,
    ) -> Box<[u64]> {
        let Ok(unwinder) = &self.kernel.unwind else {
            return Box::default();
        };
        let mut foreign = |at: GuestVirtAddr, slot: GuestVirtAddr| {
            if at == TRAMPOLINE {
                let caller = calls?.caller_at(memory, slot.0).ok()??;
                return Some(Foreign::Returned {
                    original: GuestVirtAddr(caller),
                });
            }
            if self.returns.trampoline() == Some(at) {
                let caller = self.returns.leads_to(slot.0, at.0);
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
