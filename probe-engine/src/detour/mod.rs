//! Detours: code that a probe's jump leads to. It leaves a record or counts, does the work of the
//! instructions that the jump has overwritten, and jumps back.

mod condition;
mod copies;
mod error;
mod follow;
mod frame;
mod generate;
mod ground;
mod gs;
pub mod live;
mod pun;
mod record;
mod refusal;
mod region;
mod targets;
mod trampoline;

#[cfg(test)]
mod tests;

use std::ops::Range;

use guest_kernel::percpu::Variables;
use guest_state::GuestVirtAddr;
use guest_state::x86_64::JMP_REL32_LEN;

use crate::condition::Comparison;
use crate::probe::Capture;

pub use error::DetourError;
pub use generate::generate;
pub use ground::{Ground, is_early, is_free};
pub use gs::functions_without;
pub use pun::Pattern;
pub use refusal::Refusal;
pub use region::region;
pub use targets::BranchTargets;
pub use trampoline::{Trampoline, trampoline};

/// Bytes of the jump that takes a probed instruction's place: `jmp rel32`.
pub const JUMP_LEN: usize = JMP_REL32_LEN;

/// The instructions that a jump overwrites, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// The probed instruction.
    pub start: GuestVirtAddr,
    /// The instructions' bytes as the guest's kernel has them, at least [`JUMP_LEN`] of them. Padding
    /// behind an instruction that never goes on to the next may be among them.
    pub bytes: Vec<u8>,
    /// Where in `bytes` an instruction begins, rising, the first at 0. Padding is none.
    pub starts: Vec<u8>,
    /// Where in `bytes` the last instruction ends.
    pub end: u8,
    /// Instructions behind the region that have to be executed in the detour too, as the last one of it
    /// has a hold on them (`sti`); mostly none. They aren't overwritten.
    pub beyond: Vec<u8>,
}

impl Region {
    /// The text that a jump changes.
    pub fn range(&self) -> Range<GuestVirtAddr> {
        self.start..self.start.wrapping_add(self.bytes.len() as u64)
    }

    /// Where execution goes on behind it, if it does.
    pub fn next(&self) -> GuestVirtAddr {
        let len = u64::from(self.end) + self.beyond.len() as u64;
        self.start.wrapping_add(len)
    }

    /// Where an instruction begins that the jump's displacement overwrites, from the start: 1 to 4.
    /// Whoever comes there has to meet an int3.
    pub fn interior(&self) -> impl Iterator<Item = u8> {
        let inside = |start: &u8| (1..JUMP_LEN as u8).contains(start);
        self.starts.iter().copied().filter(inside)
    }
}

/// What all detours of a guest have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// What leads from GS base to the vCPU's block ([`crate::ring::layout`]), modulo 2^64.
    pub block: u64,
    /// The first ring.
    pub rings: GuestVirtAddr,
    /// Where the kernel has its current task, and what a task tells.
    pub variables: Variables,
    /// What return probes need.
    pub following: Option<Following>,
}

/// What is there for following calls, see [`crate::calls`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Following {
    /// The table of calls.
    pub table: GuestVirtAddr,
    /// The shared code that [`trampoline`] makes: calls that are followed return here.
    pub trampoline: GuestVirtAddr,
}

/// What a detour is to do besides the work of its region.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Purpose {
    /// What a hit leaves behind; `None` if only the call's return is of interest.
    pub capture: Option<Capture>,
    /// Whether the call that begins here is followed: the region has to be a function's entry, with RSP at
    /// the return address.
    pub follow: Option<Follow>,
    /// What a hit must meet, all of it.
    pub condition: Vec<Comparison>,
    /// Whether a vCPU whose ring is full traps, instead of counting its hit as lost.
    pub lossless: bool,
    /// The detour's number, for the header of its records.
    pub number: u32,
    /// Its cell in every vCPU's block: of hits when they are only counted, else of lost records.
    pub cell: u32,
}

/// How a call is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Follow {
    /// Whether its return leaves a record, instead of being counted.
    pub records: bool,
    /// How many calls may be followed at a time.
    pub limit: u32,
    /// Whether a vCPU whose ring is full at the return traps.
    pub lossless: bool,
}

/// Registers whose values nobody will read any more, by their numbers in instruction encodings, and
/// whether that is so of the flags (CF, PF, AF, ZF, SF and OF).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Dead {
    /// Bit `n` is register `n`.
    pub registers: u16,
    /// All six arithmetic flags.
    pub flags: bool,
}

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
}

/// See [`Detour::full`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// The int3.
    pub trap: u32,
    /// The way on without a record.
    pub gives_up: u32,
}
