//! The registers of the FPU and of SSE.

use kvm_bindings::kvm_fpu;

/// Registers of the FPU's stack.
const STACK: usize = 8;
/// Bytes of a number there (SDM vol. 1, 4.2.2).
const NUMBER: usize = 10;
/// Where the status word has the top of the stack.
const TOP_SHIFT: u16 = 11;
/// The bit in front of the fraction of a number, and the largest exponent.
const INTEGER: u64 = 1 << 63;
const MAX_EXPONENT: u16 = 0x7fff;
/// What a tag says of a register (SDM vol. 1, 8.1.7).
const VALID: u16 = 0;
const ZERO: u16 = 1;
const SPECIAL: u16 = 2;
const EMPTY: u16 = 3;

/// The registers of the FPU and of SSE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FpuRegisters {
    /// ST(0) to ST(7), from the top of the stack.
    pub st: [[u8; NUMBER]; STACK],
    /// The control word.
    pub control: u16,
    /// The status word.
    pub status: u16,
    /// The tag word: two bits for each register, by its physical number, which doesn't depend on the top of the stack.
    pub tags: u16,
    /// The last instruction's opcode, its address and that of its operand.
    pub opcode: u16,
    /// See `opcode`.
    pub instruction: u64,
    /// See `opcode`.
    pub operand: u64,
    /// XMM0 to XMM15.
    pub xmm: [[u8; 16]; 16],
    /// The control and status register of SSE.
    pub mxcsr: u32,
}

/// KVM has them as FXSAVE stores them (SDM vol. 1, 10.5.1).
pub(crate) fn from_kvm(fpu: &kvm_fpu) -> FpuRegisters {
    let mut st = [[0; NUMBER]; STACK];
    for (number, stored) in st.iter_mut().zip(&fpu.fpr) {
        number.copy_from_slice(&stored[..NUMBER]);
    }
    FpuRegisters {
        st,
        control: fpu.fcw,
        status: fpu.fsw,
        tags: tags(&st, fpu.fsw, fpu.ftwx),
        opcode: fpu.last_opcode,
        instruction: fpu.last_ip,
        operand: fpu.last_dp,
        xmm: fpu.xmm,
        mxcsr: fpu.mxcsr,
    }
}

/// Makes the tag word, of which FXSAVE stores only which registers are `used` (SDM vol. 1, 10.5.1.1 and table 10-3).
fn tags(st: &[[u8; NUMBER]; STACK], status: u16, used: u8) -> u16 {
    let top = usize::from(status >> TOP_SHIFT) % STACK;
    let tag = |register: usize| match used >> register & 1 {
        0 => EMPTY,
        _ => tag_of(&st[(register + STACK - top) % STACK]),
    };
    (0..STACK).fold(0, |word, register| word | tag(register) << (2 * register))
}

fn tag_of(number: &[u8; NUMBER]) -> u16 {
    let [a, b, c, d, e, f, g, h, exponent @ ..] = *number;
    let significand = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    match u16::from_le_bytes(exponent) & MAX_EXPONENT {
        0 if significand == 0 => ZERO,
        0 | MAX_EXPONENT => SPECIAL,
        _ if significand & INTEGER == 0 => SPECIAL,
        _ => VALID,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_word_tells_what_each_register_has_wherever_the_top_is() {
        let number = |significand: u64, exponent: u16| {
            let mut stored = [0; 16];
            stored[..8].copy_from_slice(&significand.to_le_bytes());
            stored[8..10].copy_from_slice(&exponent.to_le_bytes());
            stored
        };
        // 1, 0, -0, infinity, a denormal number, one without its integer bit, and what is left of two that were popped.
        let fpr = [
            number(INTEGER, 0x3fff),
            number(0, 0),
            number(0, 0x8000),
            number(INTEGER, 0x7fff),
            number(1, 0),
            number(1, 0x3fff),
            number(INTEGER, 0x3fff),
            number(0, 0),
        ];
        let top = 5_u16;
        // Of the registers 5, 6, 7, 0, 1 and 2, from the top.
        let fpu = kvm_fpu {
            fpr,
            fsw: top << TOP_SHIFT,
            ftwx: 0b1110_0111,
            ..kvm_fpu::default()
        };
        let found = from_kvm(&fpu);
        let tag = |register: u16| found.tags >> (2 * register) & 3;
        let expected = [VALID, ZERO, ZERO, SPECIAL, SPECIAL, SPECIAL, EMPTY, EMPTY];
        for (place, expected) in (0..).zip(expected) {
            assert_eq!(tag((top + place) % 8), expected, "ST({place})");
        }
        assert_eq!(found.st[0][..], fpr[0][..10]);
    }
}
