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
    /// Where each instruction of the region has its copy: (offset in the region, offset in `code`).
    pub copies: Vec<(u8, u32)>,
    /// The same for what is behind the last copy: the jump to what is behind the region, if execution ever gets there,
    /// else other code of ours.
    pub behind: (u8, u32),
    /// Where in `code` the int3 is that a lossless detour comes to with the ring full. With RIP one byte further the
    /// detour tries again; with RIP at `gives_up` it counts the record as lost and goes on.
    pub full: Option<Full>,
}

impl Detour {
    /// Returns the offset in the region of the instruction that is executed at `offset` of the code; at the end of the
    /// copies, that of what is behind the region. `None` for code of ours.
    pub fn original(&self, offset: u32) -> Option<u8> {
        let (region, end) = self.behind;
        if offset >= end {
            return (offset == end).then_some(region);
        }
        let began = self.copies.iter().rev().find(|(_, at)| *at <= offset);
        began.map(|(region, _)| *region)
    }

    /// Returns true if a call is half done at `offset` of the code: it has pushed its return address, and has yet to
    /// jump. No other instruction of the guest's becomes two instructions that can fault.
    pub fn has_pushed(&self, offset: u32) -> bool {
        let begins = self.copies.iter().any(|(_, at)| *at == offset);
        !begins && self.original(offset).is_some() && offset != self.behind.1
    }

    /// Returns what code of ours at `offset` leads to: an instruction's copy, or the return address of a routine.
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
