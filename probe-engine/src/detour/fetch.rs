//! The code of a fetch: how a detour gets a value as it was at the probe.

use iced_x86::IcedError;
use iced_x86::code_asm::{AsmMemoryOperand, CodeAssembler, qword_ptr, registers as reg};

use super::saved::{Needed, RSP, Saved, gpr};
use crate::fetch::{Fetch, Fetches};

impl Needed {
    /// Returns these, and what the fetches read.
    pub(super) fn and(self, fetches: Fetches) -> Self {
        fetches.iter().fold(self, |needed, fetch| match fetch {
            Fetch::Register(number) => needed.and_register(number),
            Fetch::Flags => needed.and_flags(),
        })
    }
}

/// Puts aside, before anything else, what can't be fetched any more once the detour has changed it.
pub(super) fn put_aside(
    a: &mut CodeAssembler,
    fetches: Fetches,
    stack: &mut Saved,
) -> Result<(), IcedError> {
    match fetches.contains(Fetch::Flags) {
        true => stack.save_flags(a),
        false => Ok(()),
    }
}

/// Returns true if the value is still where it was at the probe.
pub(super) fn is_in_place(fetch: Fetch, stack: &Saved) -> bool {
    match fetch {
        Fetch::Register(number) => number != RSP && stack.of(number).is_none(),
        Fetch::Flags => false,
    }
}

/// Writes the value to `to`; RAX is used unless [`is_in_place`]. RSP was at `rsp` at the probe.
pub(super) fn write(
    a: &mut CodeAssembler,
    fetch: Fetch,
    stack: &Saved,
    rsp: AsmMemoryOperand,
    to: AsmMemoryOperand,
) -> Result<(), IcedError> {
    let kept = match fetch {
        Fetch::Register(number) if is_in_place(fetch, stack) => return a.mov(to, gpr(number)),
        Fetch::Register(number) => stack.of(number),
        Fetch::Flags => stack.of_flags(),
    };
    match kept {
        Some(kept) => a.mov(reg::rax, qword_ptr(reg::rsp + kept))?,
        None => a.lea(reg::rax, rsp)?,
    }
    a.mov(to, reg::rax)
}
