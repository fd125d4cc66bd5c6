//! Where a function is left: its own `ret`s and the jumps out of it.

use std::ops::Range;

use guest_state::GuestVirtAddr;

/// All places where a function may be left.
#[derive(Debug, Clone)]
pub(super) struct WaysOut {
    /// Its text, without what it begins with in front of the probed entry.
    pub(super) parts: Vec<Range<GuestVirtAddr>>,
    pub(super) exits: Vec<WayOut>,
}

/// An instruction that may leave the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WayOut {
    pub(super) at: GuestVirtAddr,
    /// It is a `ret`, which always does.
    pub(super) is_ret: bool,
    /// It goes on in another function with the same return address.
    pub(super) tail_call: bool,
}

impl WaysOut {
    pub(super) fn all(&self) -> impl Iterator<Item = GuestVirtAddr> {
        self.exits.iter().map(|exit| exit.at)
    }

    /// What the instruction at `at` is, if it is one of them and has led out of the function to `rip`.
    pub(super) fn left(&self, at: GuestVirtAddr, rip: GuestVirtAddr) -> Option<WayOut> {
        let exit = self.exits.iter().find(|exit| exit.at == at)?;
        let inside = self.parts.iter().any(|part| part.contains(&rip));
        (exit.is_ret || !inside).then_some(*exit)
    }
}
