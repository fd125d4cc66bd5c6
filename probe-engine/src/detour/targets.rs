//! Where the direct branches of a text lead.

use std::ops::Range;

use guest_state::GuestVirtAddr;
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// A set of addresses of one text: the targets of its direct branches and calls. Takes a bit for each
/// byte of the text.
///
/// It is filled by decoding functions from their starts on. Where that goes wrong (data between
/// instructions) a target is missing or one too many; both are safe, as every boundary that a jump
/// overwrites has its int3.
#[derive(Debug, Clone)]
pub struct BranchTargets {
    text: Range<GuestVirtAddr>,
    bits: Vec<u64>,
}

impl BranchTargets {
    /// An empty set, for a text of `len` bytes.
    pub fn new(start: GuestVirtAddr, len: usize) -> Self {
        let len = len.min(usize::try_from(u64::MAX - start.0).unwrap_or(usize::MAX));
        Self {
            text: start..start.wrapping_add(len as u64),
            bits: vec![0; len.div_ceil(WORD)],
        }
    }

    /// Finds the targets of all functions in `text`, which lies at `start`. `functions` are their addresses, rising;
    /// each reaches to the next.
    pub fn of(
        start: GuestVirtAddr,
        text: &[u8],
        functions: impl IntoIterator<Item = GuestVirtAddr>,
    ) -> Self {
        let mut targets = Self::new(start, text.len());
        let offset = |at: GuestVirtAddr| usize::try_from(at.offset_from(start)?).ok();
        let mut last = 0;
        let inside = |at: &usize| *at < text.len();
        let ends = functions.into_iter().filter_map(offset).filter(inside);
        for end in ends.chain([text.len()]) {
            let bytes = text.get(last..end).unwrap_or_default();
            targets.add_function(start.wrapping_add(last as u64), bytes);
            last = end;
        }
        targets
    }

    /// Adds the targets of one function's branches.
    pub fn add_function(&mut self, start: GuestVirtAddr, bytes: &[u8]) {
        // No time is spent on telling invalid instructions apart.
        const OPTIONS: u32 = DecoderOptions::NO_INVALID_CHECK;
        let mut decoder = Decoder::with_ip(64, bytes, start.0, OPTIONS);
        let mut insn = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut insn);
            if insn.op0_kind() == OpKind::NearBranch64 {
                self.insert(GuestVirtAddr(insn.near_branch64()));
            }
        }
    }

    /// Adds an address, if it is in the text.
    pub fn insert(&mut self, target: GuestVirtAddr) {
        if self.text.contains(&target) {
            let at = (target.0 - self.text.start.0) as usize;
            if let Some(word) = self.bits.get_mut(at / WORD) {
                *word |= 1 << (at % WORD);
            }
        }
    }

    /// Returns true if a branch leads to one of these addresses.
    pub fn any(&self, range: Range<GuestVirtAddr>) -> bool {
        let start = range.start.max(self.text.start).0;
        let end = range.end.min(self.text.end).0;
        let is_target = |at: u64| {
            let at = (at - self.text.start.0) as usize;
            let word = self.bits.get(at / WORD).copied().unwrap_or(0);
            word >> (at % WORD) & 1 == 1
        };
        (start..end).any(is_target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: GuestVirtAddr = GuestVirtAddr(0xffff_ffff_8100_0000);

    fn at(offset: u64) -> GuestVirtAddr {
        TEXT.wrapping_add(offset)
    }

    #[test]
    fn branches_and_calls_lead_to_their_targets_only() {
        // je +4; jmp +0x0b; call +0x0e (rel32); nops to 0x20.
        let mut text = vec![0x74, 0x02, 0xeb, 0x07, 0xe8, 0x05, 0, 0, 0];
        text.resize(0x20, 0x90);
        let targets = BranchTargets::of(TEXT, &text, []);
        let found: Vec<_> = (0..0x20)
            .filter(|i| targets.any(at(*i)..at(i + 1)))
            .collect();
        assert_eq!(found, [0x04, 0x0b, 0x0e]);
        assert!(targets.any(at(1)..at(5)));
        assert!(!targets.any(at(5)..at(0x0b)));
        assert!(!targets.any(at(5)..at(5)));
    }

    #[test]
    fn each_function_is_decoded_from_its_own_start() {
        // The first ends in half an instruction that would swallow the second's jump.
        let text = [0x48, 0xb8, 0xeb, 0xfc, 0x90, 0x90];
        let together = BranchTargets::of(TEXT, &text, []);
        let apart = BranchTargets::of(TEXT, &text, [TEXT, at(2)]);
        assert!(!together.any(TEXT..at(6)));
        assert!(apart.any(TEXT..at(1)));
    }

    #[test]
    fn branch_targets_outside_the_text_are_neither_kept_nor_found() {
        let mut targets = BranchTargets::new(TEXT, 8);
        targets.insert(at(8));
        targets.insert(GuestVirtAddr(TEXT.0 - 1));
        assert!(!targets.any(GuestVirtAddr(0)..GuestVirtAddr(u64::MAX)));
        targets.insert(at(7));
        assert!(targets.any(GuestVirtAddr(0)..GuestVirtAddr(u64::MAX)));
        assert!(!targets.any(at(8)..at(7)));
    }
}
