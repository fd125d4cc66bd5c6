//! Divisions: whether one will raise its exception can be computed beforehand.

use guest_state::Registers;
use iced_x86::{Instruction, Mnemonic, OpKind};

/// A `div` or `idiv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Division {
    /// Size of the divisor in bits: 8, 16, 32 or 64.
    bits: u32,
    signed: bool,
}

impl Division {
    /// Returns the division that an instruction is, if it is one.
    pub(crate) fn of(insn: &Instruction) -> Option<Self> {
        let signed = match insn.mnemonic() {
            Mnemonic::Div => false,
            Mnemonic::Idiv => true,
            _ => return None,
        };
        let bytes = match insn.op0_kind() {
            OpKind::Register => insn.op0_register().size(),
            _ => insn.memory_size().size(),
        };
        matches!(bytes, 1 | 2 | 4 | 8).then_some(Self {
            bits: 8 * bytes as u32,
            signed,
        })
    }

    /// Returns true if it raises #DE, by the registers before it: the quotient is too large, or
    /// `divisor` zero (SDM vol. 2, DIV and IDIV). Bits of `divisor` above the operand's size don't
    /// count.
    pub(crate) fn faults(self, regs: &Registers, divisor: u64) -> bool {
        let bits = self.bits;
        let mask = u64::MAX >> (64 - bits);
        let divisor = divisor & mask;
        // The dividend's upper half is RDX, for bytes AH.
        let (high, low) = match bits {
            8 => (regs.rax >> 8 & mask, regs.rax & mask),
            _ => (regs.rdx & mask, regs.rax & mask),
        };
        if !self.signed {
            return high >= divisor;
        }
        let extend = |value: u128, bits: u32| (value << (128 - bits)).cast_signed() >> (128 - bits);
        let dividend = extend(u128::from(high) << bits | u128::from(low), 2 * bits);
        match dividend.checked_div(extend(divisor.into(), bits)) {
            Some(quotient) => extend(quotient.cast_unsigned(), bits) != quotient,
            None => true,
        }
    }
}
