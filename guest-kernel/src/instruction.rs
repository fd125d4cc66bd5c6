//! How long an instruction is.

use guest_state::GuestVirtAddr;
use iced_x86::{Decoder, DecoderOptions};

/// Returns the length in bytes of the 64-bit instruction that `bytes` begin with; `None` if they begin with none, or
/// with less than all of it.
pub(crate) fn len(bytes: &[u8], at: GuestVirtAddr) -> Option<usize> {
    /// A call or jump to a relative address (SDM vol. 2, CALL, JMP): most places of the kernel's tables have one.
    const NEAR: usize = 5;
    if bytes.len() >= NEAR && matches!(bytes[0], 0xe8 | 0xe9) {
        return Some(NEAR);
    }
    let insn = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).decode();
    (!insn.is_invalid() && insn.len() <= bytes.len()).then_some(insn.len())
}
