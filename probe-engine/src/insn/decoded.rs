//! Decoding.

use guest_state::GuestVirtAddr;
use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::forms::Prefixes;

/// A decoded instruction with the bytes it was decoded from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoded {
    pub(crate) insn: Instruction,
    pub(crate) prefixes: Prefixes,
}

/// The bytes at an address are no instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Undecodable;

/// Decodes the 64-bit instruction that `bytes` begin with.
///
/// # Errors
/// It is invalid, or longer than `bytes`.
pub(crate) fn decode(bytes: &[u8], at: GuestVirtAddr) -> Result<Decoded, Undecodable> {
    let mut decoder = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE);
    let insn = decoder.decode();
    if insn.is_invalid() {
        return Err(Undecodable);
    }
    let bytes = bytes.get(..insn.len()).ok_or(Undecodable)?;
    Ok(Decoded {
        insn,
        prefixes: Prefixes::of(bytes),
    })
}
