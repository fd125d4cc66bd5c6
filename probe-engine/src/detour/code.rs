//! The code of a detour, and what is where in it.

use guest_state::GuestVirtAddr;

use super::way_out::{WayOut, way_out};

/// A detour's code, right at one address only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detour {
    /// Where it has to be.
    pub at: GuestVirtAddr,
    /// The code.
    pub code: Vec<u8>,
    /// Where in `code` the instruction is that begins at that byte of the region: (region, code).
    pub copies: Vec<(u8, u32)>,
    /// The same of what is behind the last of them: the jump to what is behind the region, if it is ever
    /// come to, else something of ours.
    pub behind: (u8, u32),
    /// Where in `code` the int3 is that a lossless detour comes to with the ring full. With RIP one
    /// byte further it tries again; with RIP at `gives_up` it counts the record as lost and goes on.
    pub full: Option<Full>,
}

impl Detour {
    /// How far from the region's start the instruction is that is executed at `offset` of the code, or
    /// the one behind the region where the way goes there. `None` for code of ours.
    pub fn original(&self, offset: u32) -> Option<u8> {
        let (region, end) = self.behind;
        if offset >= end {
            return (offset == end).then_some(region);
        }
        let began = self.copies.iter().rev().find(|(_, at)| *at <= offset);
        began.map(|(region, _)| *region)
    }

    /// Whether at `offset` of the code a call is half done: it has pushed its return address, and has yet to
    /// jump. Nothing else of the guest's takes two instructions that can fault.
    pub fn has_pushed(&self, offset: u32) -> bool {
        let begins = self.copies.iter().any(|(_, at)| *at == offset);
        !begins && self.original(offset).is_some() && offset != self.behind.1
    }

    /// What code of ours at `offset` leads to: an instruction that is copied, or back to who has called a routine.
    pub fn way_out(&self, offset: u32) -> Option<WayOut> {
        let is_copy = |offset| self.copies.iter().any(|(_, at)| *at == offset);
        way_out(&self.code, offset, is_copy)
    }
}

/// See [`Detour::full`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// The int3.
    pub trap: u32,
    /// The way on without a record.
    pub gives_up: u32,
}
