//! Which instructions a jump overwrites, or why it can't.

use std::ops::Range;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::{INT3, JMP_REL32_LEN};
use iced_x86::{FlowControl, Instruction, Mnemonic};

use super::ground::Ground;
use crate::insn;
use crate::probe::NoJump;
use crate::relocate::bound_in_detour;

/// The most instructions behind a region that are taken into the detour: one `sti` after the other.
const BEYOND: usize = 4;

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
    /// Where in `bytes` an instruction begins, rising, the first at 0. Padding doesn't count.
    pub starts: Vec<u8>,
    /// Where in `bytes` the last instruction ends.
    pub end: u8,
    /// Instructions behind the region that have to be executed in the detour too, as the region's last one keeps
    /// interrupts off them (`sti`); mostly none. They aren't overwritten.
    pub beyond: Vec<u8>,
}

impl Region {
    /// The text that a jump changes.
    pub fn range(&self) -> Range<GuestVirtAddr> {
        self.start..self.start.wrapping_add(self.bytes.len() as u64)
    }

    /// Where execution goes on behind the region, if it does.
    pub fn next(&self) -> GuestVirtAddr {
        let len = u64::from(self.end) + self.beyond.len() as u64;
        self.start.wrapping_add(len)
    }

    /// The offsets, from 1 to 4, at which an instruction begins that the jump's displacement
    /// overwrites. A task that comes there has to meet an int3.
    pub fn interior(&self) -> impl Iterator<Item = u8> {
        let inside = |start: &u8| (1..JUMP_LEN as u8).contains(start);
        self.starts.iter().copied().filter(inside)
    }
}

/// Returns the region of a jump in the place of the instruction at `at`.
///
/// # Errors
/// Why the instruction has to stay a breakpoint.
pub fn region(at: GuestVirtAddr, ground: &Ground<'_>) -> Result<Region, NoJump> {
    let mut walk = RegionWalk {
        at,
        ground,
        starts: Vec::new(),
        end: 0,
        len: 0,
        goes_on: true,
    };
    let mut last = walk.next()?;
    while walk.len < JUMP_LEN {
        if !walk.goes_on && walk.skip_padding() {
            break;
        }
        last = walk.next()?;
    }
    let end = at.wrapping_add(walk.len as u64);
    if (ground.is_target)(at.wrapping_add(1)..end) {
        return Err(NoJump::Branch { at, end });
    }
    let overwritten = walk.len;
    while holds_the_next(&last) {
        if walk.starts.len() > JUMP_LEN + BEYOND {
            return Err(walk.bound(&last, "it holds interrupts back over and over"));
        }
        last = walk.next()?;
    }
    let all = at..at.wrapping_add(walk.len as u64);
    (ground.is_free)(all)?;
    let bytes = |range: Range<usize>| ground.text.get(range).unwrap_or_default().to_vec();
    Ok(Region {
        start: at,
        bytes: bytes(0..overwritten),
        end: walk.end.min(overwritten) as u8,
        beyond: bytes(overwritten..walk.len),
        starts: walk.starts_before(overwritten),
    })
}

/// A walk over the instructions of a region, one after the other.
struct RegionWalk<'a> {
    at: GuestVirtAddr,
    ground: &'a Ground<'a>,
    starts: Vec<u8>,
    /// Where the last instruction ends.
    end: usize,
    /// Where the padding behind it ends.
    len: usize,
    /// Whether execution goes on behind the last instruction.
    goes_on: bool,
}

impl RegionWalk<'_> {
    fn next(&mut self) -> Result<Instruction, NoJump> {
        let at = self.at.wrapping_add(self.len as u64);
        let function_end = self.ground.function_end;
        let left = function_end.offset_from(at).unwrap_or(0);
        let bytes = self.ground.text.get(self.len..).unwrap_or_default();
        if left == 0 {
            return Err(NoJump::FunctionEnd { end: function_end });
        }
        let code = insn::decode(bytes, at).map_err(|_| NoJump::Undecodable { at })?;
        if code.insn.len() as u64 > left {
            return Err(NoJump::FunctionEnd { end: function_end });
        }
        let insn = code.insn;
        self.check(&insn, bytes)?;
        self.starts.push(self.len as u8);
        self.len += insn.len();
        self.end = self.len;
        self.goes_on = !insn::never_falls_through(&insn);
        Ok(insn)
    }

    fn check(&self, insn: &Instruction, bytes: &[u8]) -> Result<(), NoJump> {
        let at = GuestVirtAddr(insn.ip());
        let text = || insn::text(insn);
        if bytes.first() == Some(&INT3) {
            return Err(NoJump::GuestBreakpoint { at });
        }
        if insn::is_trap(insn) {
            let instruction = text();
            return Err(NoJump::Trap { at, instruction });
        }
        if let Some(why) = bound_in_detour(insn) {
            return Err(self.bound(insn, why));
        }
        if (self.ground.expects_fault)(at) {
            return Err(NoJump::ExpectsFault { at });
        }
        if self.len == 0 && waits(insn) {
            let instruction = text();
            return Err(NoJump::Waits { instruction });
        }
        if self.len > 0 && insn::is_endbr(insn) {
            // An indirect branch must not arrive at an int3.
            let end = GuestVirtAddr(insn.next_ip());
            return Err(NoJump::Branch { at: self.at, end });
        }
        let returns = GuestVirtAddr(insn.next_ip());
        if is_call(insn) && self.len + insn.len() < JUMP_LEN {
            return Err(NoJump::Call { at, returns });
        }
        Ok(())
    }

    fn bound(&self, insn: &Instruction, why: &'static str) -> NoJump {
        NoJump::Bound {
            at: GuestVirtAddr(insn.ip()),
            instruction: insn::text(insn),
            why,
        }
    }

    /// Skips the padding behind an instruction that never goes on to it. Returns true if that makes room enough. The
    /// target of a fix-up isn't padding, nor is what is before it.
    fn skip_padding(&mut self) -> bool {
        let left = self.ground.function_end.offset_from(self.at).unwrap_or(0);
        let from = self.len;
        while self.len < JUMP_LEN {
            let at = self.at.wrapping_add(self.len as u64);
            let Some(bytes) = self.ground.text.get(self.len..) else {
                return false;
            };
            let len = match insn::decode(bytes, at) {
                Ok(code) if bytes.first() == Some(&INT3) || is_nop(&code.insn) => code.insn.len(),
                _ => return false,
            };
            if (self.len + len) as u64 > left {
                return false;
            }
            if (self.ground.is_fix_up)(at..at.wrapping_add(len as u64)) {
                self.len = from;
                return false;
            }
            self.len += len;
        }
        true
    }

    fn starts_before(&self, end: usize) -> Vec<u8> {
        let starts = self.starts.iter().copied();
        starts.filter(|start| usize::from(*start) < end).collect()
    }
}

fn is_call(insn: &Instruction) -> bool {
    matches!(
        insn.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
}

fn is_nop(insn: &Instruction) -> bool {
    insn.mnemonic() == Mnemonic::Nop
}

/// Returns true if no interrupt comes before the next instruction is done (SDM vol. 2, STI).
fn holds_the_next(insn: &Instruction) -> bool {
    matches!(insn.mnemonic(), Mnemonic::Sti | Mnemonic::Stgi)
}

/// Returns true if it waits for an interrupt. Behind `sti` that is safe only with no instruction in between.
fn waits(insn: &Instruction) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Hlt | Mnemonic::Mwait | Mnemonic::Mwaitx
    )
}

#[cfg(test)]
mod tests;
