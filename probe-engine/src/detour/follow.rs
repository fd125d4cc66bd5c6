//! A return probe's part of a detour: has the call that is beginning followed.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, dword_ptr, qword_ptr, registers as reg};

use super::environment::Environment;
use super::error::DetourError;
use super::purpose::Follow;
use super::saved::{Needed, RAX, Saved};
use super::{fetch, record};
use crate::calls::layout::{BEGINS, COUNTS, ENTER, ENTRY, ENTRY_TSC, LOSSLESS, NUMBER, WORD};
use crate::fetch::Fetches;

/// Numbers of registers that the trampoline's routine takes and changes, besides RAX.
const ARGUMENTS: [u8; 2] = [10, 11];

/// Follows the call whose return address RSP is at. What is `needed` is afterwards as it was.
pub(super) fn follow(
    a: &mut CodeAssembler,
    environment: &Environment,
    number: u32,
    follow: Follow,
    needed: Needed,
) -> Result<(), DetourError> {
    let following = environment.following.ok_or(DetourError::Unknown {
        name: "the table of calls",
    })?;
    let recorded = follow.recorded();
    let to_save = needed.and(recorded);
    let mut stack = Saved::default();
    fetch::put_aside(a, recorded, &mut stack)?;
    let changed = [RAX].into_iter().chain(ARGUMENTS);
    for number in changed.filter(|number| to_save.register(*number)) {
        stack.save(a, number)?;
    }
    if needed.flags() && stack.of_flags().is_none() {
        stack.save_arithmetic_flags(a)?;
    }
    let mut done = a.create_label();
    a.lea(reg::r11, qword_ptr(reg::rsp + stack.depth()))?;
    a.mov(reg::r10, follow.argument(number))?;
    a.call(following.trampoline.wrapping_add(ENTER).0)?;
    if follow.records {
        a.test(reg::rax, reg::rax)?;
        a.je(done)?;
        keep(a, &stack, recorded)?;
    }
    a.set_label(&mut done)?;
    a.zero_bytes()?;
    Ok(stack.restore(a, needed)?)
}

/// Puts the values, as they are at the probe, and the time into the call at RAX.
fn keep(a: &mut CodeAssembler, stack: &Saved, fetches: Fetches) -> Result<(), IcedError> {
    let call = reg::r11;
    a.mov(call, reg::rax)?;
    let rsp = qword_ptr(reg::rsp + stack.depth());
    for (it, at) in fetches.layout() {
        fetch::write(a, it, stack, rsp, qword_ptr(call + (ENTRY + at)))?;
    }
    a.mov(reg::r10, reg::rdx)?;
    record::time(a)?;
    a.mov(qword_ptr(call + ENTRY_TSC), reg::rax)?;
    a.mov(reg::rdx, reg::r10)?;
    a.and(dword_ptr(call + WORD), !BEGINS.cast_signed())
}

impl Follow {
    /// What the return's record tells of the entry.
    pub(super) fn recorded(self) -> Fetches {
        match self.records {
            true => Fetches::ALL,
            false => Fetches::default(),
        }
    }

    /// What the trampoline's routine takes in R10.
    fn argument(self, number: u32) -> u64 {
        let flag = |on, flag| if on { flag } else { 0 };
        let kind = if self.records { BEGINS } else { COUNTS };
        let word = number & NUMBER | kind | flag(self.lossless, LOSSLESS);
        u64::from(self.limit) << 32 | u64::from(word)
    }
}
