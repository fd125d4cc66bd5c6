//! The flags that the manual leaves undefined after an instruction.

use iced_x86::{Mnemonic, OpKind, Register};

use crate::case::Case;

const CF: u64 = 1 << 0;
const AF: u64 = 1 << 4;
const OF: u64 = 1 << 11;

/// Returns the undefined flags of a case, for the instructions that the engine emulates (SDM vol.
/// 2).
pub fn undefined(case: &Case) -> u64 {
    let insn = &case.insn;
    match insn.mnemonic() {
        Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test => AF,
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => {
            let bits = 8 * match insn.op0_kind() {
                OpKind::Register => insn.op0_register().size(),
                _ => insn.memory_size().size(),
            } as u64;
            let count = match insn.op1_register() {
                Register::CL => case.registers.rcx & 0xff,
                _ => u64::from(insn.immediate8()),
            };
            let count = count & if bits == 64 { 63 } else { 31 };
            match count {
                0 => 0,
                1 => AF,
                count if count >= bits && insn.mnemonic() != Mnemonic::Sar => AF | OF | CF,
                _ => AF | OF,
            }
        }
        _ => 0,
    }
}
