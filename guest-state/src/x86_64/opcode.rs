//! The few instructions that are written without an assembler.
//!
//! Source: Intel SDM vol. 2, the pages of INT 3, NOP and JMP.

use crate::addr::GuestVirtAddr;

/// The one-byte breakpoint instruction.
pub const INT3: u8 = 0xcc;

/// The one-byte instruction that does nothing.
pub const NOP: u8 = 0x90;

/// The instruction of five bytes that does nothing, as the manual recommends it.
pub const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// The opcode of `jmp rel32`.
pub const JMP_REL32: u8 = 0xe9;

/// Bytes of `jmp rel32`: the opcode and the displacement from the next instruction.
pub const JMP_REL32_LEN: usize = 5;

/// The `jmp rel32` at `from` that leads to `to`; `None` if that is more than 2 GiB away.
pub fn jmp_rel32(from: GuestVirtAddr, to: GuestVirtAddr) -> Option<[u8; JMP_REL32_LEN]> {
    let next = from.wrapping_add(JMP_REL32_LEN as u64);
    let distance = to.0.wrapping_sub(next.0).cast_signed();
    let [a, b, c, d] = i32::try_from(distance).ok()?.to_le_bytes();
    Some([JMP_REL32, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_counts_from_the_next_instruction_and_reaches_2_gib() {
        let from = GuestVirtAddr(0xffff_ffff_8100_0000);
        let next = from.wrapping_add(5);
        for (distance, displacement) in [
            (0, Some([0; 4])),
            (-5, Some([0xfb, 0xff, 0xff, 0xff])),
            (0x1234, Some([0x34, 0x12, 0, 0])),
            (i64::from(i32::MIN), Some([0, 0, 0, 0x80])),
            (i64::from(i32::MIN) - 1, None),
            (i64::from(i32::MAX) + 1, None),
        ] {
            let jump = jmp_rel32(from, next.wrapping_add(distance.cast_unsigned()));
            let expected = displacement.map(|[a, b, c, d]| [0xe9, a, b, c, d]);
            assert_eq!(jump, expected, "{distance:#x}");
        }
    }
}
