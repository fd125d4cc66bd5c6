//! A return probe's part of a detour: has the call that is beginning followed.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, dword_ptr, qword_ptr, registers as reg};

use super::frame::{Frame, Needed, RAX, RSP, gpr};
use super::{DetourError, Environment, Follow, record};
use crate::calls::layout::{BEGINS, COUNTS, ENTER, ENTRY, ENTRY_TSC, LOSSLESS, NUMBER, WORD};
use crate::probe::RegisterSet;

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
    let mut frame = Frame::default();
    if recorded.contains(RegisterSet::FLAGS) {
        frame.save_flags(a)?;
    }
    let changed = [RAX].into_iter().chain(ARGUMENTS);
    for number in changed.filter(|number| to_save.register(*number)) {
        frame.save(a, number)?;
    }
    if needed.flags() && frame.of_flags().is_none() {
        frame.save_arithmetic_flags(a)?;
    }
    let mut done = a.create_label();
    a.lea(reg::r11, qword_ptr(reg::rsp + frame.depth()))?;
    a.mov(reg::r10, follow.argument(number))?;
    a.call(following.trampoline.wrapping_add(ENTER).0)?;
    if follow.records {
        a.test(reg::rax, reg::rax)?;
        a.je(done)?;
        keep(a, &frame, recorded)?;
    }
    a.set_label(&mut done)?;
    a.zero_bytes()?;
    Ok(frame.restore(a, needed)?)
}

/// Puts the registers, as they are at the probe, and the time into the call at RAX.
fn keep(a: &mut CodeAssembler, frame: &Frame, set: RegisterSet) -> Result<(), IcedError> {
    let call = reg::r11;
    a.mov(call, reg::rax)?;
    for number in set.numbers() {
        let place = qword_ptr(call + (ENTRY + 8 * u64::from(number)));
        let kept = match number {
            RegisterSet::FLAGS => frame.of_flags(),
            number => frame.of(number),
        };
        match (kept, number) {
            (Some(kept), _) => a.mov(reg::rax, qword_ptr(reg::rsp + kept))?,
            (None, RSP) => a.lea(reg::rax, qword_ptr(reg::rsp + frame.depth()))?,
            (None, number) => {
                a.mov(place, gpr(number))?;
                continue;
            }
        }
        a.mov(place, reg::rax)?;
    }
    a.mov(reg::r10, reg::rdx)?;
    record::time(a)?;
    a.mov(qword_ptr(call + ENTRY_TSC), reg::rax)?;
    a.mov(reg::rdx, reg::r10)?;
    a.and(dword_ptr(call + WORD), !BEGINS.cast_signed())
}

impl Follow {
    /// The registers at the entry that the return's record tells.
    pub(super) fn recorded(self) -> RegisterSet {
        match self.records {
            true => RegisterSet::ALL,
            false => RegisterSet::default(),
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
