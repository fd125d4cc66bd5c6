//! From an address in the arena to the one in the guest's text that it stands for.

use guest_state::GuestVirtAddr;

use crate::arena::TRAMPOLINE;
use crate::engine::Engine;
use crate::engine::code::arena::CodeArena;

impl Engine {
    /// The instruction of the guest's text that a vCPU with its RIP in the arena executes, or comes to next.
    /// `None` for code of ours, and for what isn't in the arena.
    pub(crate) fn original(&self, rip: GuestVirtAddr) -> Option<GuestVirtAddr> {
        if !CodeArena::covers(rip) {
            return None;
        }
        if let Some(site) = self.copied_before(rip) {
            return Some(site.next());
        }
        self.arena.original(rip)
    }

    /// Where RIP would be in the guest's text, of a vCPU that has just executed an instruction of the guest's. `None`
    /// if it has executed code of ours.
    pub(crate) fn went_on(&self, rip: GuestVirtAddr) -> Option<GuestVirtAddr> {
        // The guest's own `ret` leads to what calls return to.
        let trampolines = [Some(TRAMPOLINE), self.returns.trampoline()];
        if !CodeArena::covers(rip) || trampolines.contains(&Some(rip)) {
            return Some(rip);
        }
        // What is in front of the first copy is ours, and leads to it.
        self.original(rip.wrapping_add(u64::MAX))?;
        self.original(rip)
    }
}
