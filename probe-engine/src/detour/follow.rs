//! A return probe's part of a detour: it starts to follow the call that is beginning.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, CodeLabel, dword_ptr, qword_ptr, registers as reg};

use super::environment::Environment;
use super::error::DetourError;
use super::purpose::Follow;
use super::saved::{Needed, RAX, Saved};
use super::{fetch, record};
use crate::calls::layout::{
    AT_RETURN, BEGINS, COUNTS, ENTER, ENTRY, ENTRY_TSC, LOSSLESS, NUMBER, VALUES, WORD,
};
use crate::fetch::Fetches;

/// Numbers of registers that the trampoline's routine takes and changes, besides RAX.
const ARGUMENTS: [u8; 2] = [10, 11];

/// Follows the call whose return address RSP is at. What is `needed` keeps its value. `at_return` is the routine that
/// writes the return's record, if that has values.
pub(super) fn follow(
    a: &mut CodeAssembler,
    environment: &Environment,
    number: u32,
    (follow, at_return): (Follow, Option<CodeLabel>),
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
    a.mov(reg::r10, follow.argument(number, at_return.is_some()))?;
    a.call(following.trampoline.wrapping_add(ENTER).0)?;
    if follow.records {
        a.test(reg::rax, reg::rax)?;
        a.je(done)?;
        keep(a, &stack, recorded, at_return)?;
    }
    a.set_label(&mut done)?;
    a.zero_bytes()?;
    Ok(stack.restore(a, needed)?)
}

/// Puts the registers, as they are at the probe, the time and the routine into the call at RAX.
fn keep(
    a: &mut CodeAssembler,
    stack: &Saved,
    fetches: Fetches,
    at_return: Option<CodeLabel>,
) -> Result<(), IcedError> {
    let call = reg::r11;
    a.mov(call, reg::rax)?;
    let rsp = qword_ptr(reg::rsp + stack.depth());
    for (it, at) in fetches.layout() {
        fetch::write(a, it, stack, rsp, qword_ptr(call + (ENTRY + at)))?;
    }
    if let Some(routine) = at_return {
        a.lea(reg::rax, qword_ptr(routine))?;
        a.mov(qword_ptr(call + AT_RETURN), reg::rax)?;
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
    fn argument(self, number: u32, has_values: bool) -> u64 {
        let flag = |on, flag| if on { flag } else { 0 };
        let kind = if self.records { BEGINS } else { COUNTS };
        let flags = flag(self.lossless, LOSSLESS) | flag(has_values, VALUES);
        let word = number & NUMBER | kind | flags;
        u64::from(self.limit) << 32 | u64::from(word)
    }
}
