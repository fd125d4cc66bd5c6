//! Where a function is left: its own `ret`s and the jumps out of it.

use std::ops::Range;

use guest_state::GuestVirtAddr;

/// All places where a function may be left.
#[derive(Debug, Clone)]
pub(crate) struct WaysOut {
    /// The function's text, without what is in front of the probed entry.
    pub(crate) parts: Vec<Range<GuestVirtAddr>>,
    pub(crate) exits: Vec<WayOut>,
}

/// An instruction that may leave the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WayOut {
    pub(crate) at: GuestVirtAddr,
    /// True for a `ret`, which always leaves the function.
    pub(crate) is_ret: bool,
    /// True if it goes on in another function with the same return address.
    pub(crate) tail_call: bool,
}

impl WaysOut {
    pub(crate) fn all(&self) -> impl Iterator<Item = GuestVirtAddr> {
        self.exits.iter().map(|exit| exit.at)
    }

    /// Returns the way out at `at`, if there is one and it has led out of the function to `rip`.
    pub(crate) fn left(&self, at: GuestVirtAddr, rip: GuestVirtAddr) -> Option<WayOut> {
        let exit = self.exits.iter().find(|exit| exit.at == at)?;
        let inside = self.parts.iter().any(|part| part.contains(&rip));
        (exit.is_ret || !inside).then_some(*exit)
    }
}
