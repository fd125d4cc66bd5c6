//! How long an instruction is.

use guest_state::GuestVirtAddr;
use iced_x86::{Decoder, DecoderOptions};

/// Bytes of the 64-bit instruction that `bytes` begin with; `None` if they begin with none, or with less
/// than all of it.
pub(crate) fn len(bytes: &[u8], at: GuestVirtAddr) -> Option<usize> {
    let insn = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).decode();
    (!insn.is_invalid() && insn.len() <= bytes.len()).then_some(insn.len())
}
