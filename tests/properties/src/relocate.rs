//! Relocating any instruction, there and back.

use guest_state::GuestVirtAddr;
use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use probe_engine::relocate::for_comparison;

use crate::input::Input;

/// `jmp rel32`
const JMP: u8 = 0xe9;
const NOP: u8 = 0x90;

/// Checks, for any instruction and addresses, that a copy is one instruction that does the same to the same memory,
/// that the jump behind it (and behind `nop`s) leads behind the original, and that the copy's copy at the original's
/// place is the original.
///
/// The bytes: code (15), from, to.
///
/// # Panics
/// If that doesn't hold.
pub fn relocate(bytes: &[u8]) {
    let mut input = Input(bytes);
    let code: [u8; 15] = input.array();
    let (at, to) = (input.word(), input.word());
    // They are mostly near each other: the upper half of `to` decides.
    let to = if to >> 63 == 0 {
        at.wrapping_add(to >> 32)
    } else {
        to
    };
    let Ok(made) = for_comparison(&code, GuestVirtAddr(at), GuestVirtAddr(to)) else {
        return;
    };
    let original = decode(&code, at).unwrap();
    let copy = decode(&made.copy, to).unwrap();
    assert_eq!(copy.len(), made.copy.len(), "{:02x?}", made.copy);
    assert_eq!(meaning(&original), meaning(&copy), "{:02x?}", made.copy);
    if let Some(boosted) = made.boosted {
        let (first, jump) = boosted.split_at(made.copy.len());
        assert_eq!(first, made.copy);
        let padding = jump.iter().take_while(|byte| **byte == NOP).count();
        let [JMP, by @ ..] = &jump[padding..] else {
            panic!("no jump behind the copy: {jump:02x?}");
        };
        let by = i32::from_le_bytes(by.try_into().unwrap());
        let end = to.wrapping_add(boosted.len() as u64);
        let next = at.wrapping_add(original.len() as u64);
        assert_eq!(end.wrapping_add_signed(by.into()), next);
    }
    let back = for_comparison(&made.copy, GuestVirtAddr(to), GuestVirtAddr(at));
    let back = back.unwrap_or_else(|why| panic!("{:02x?} can't go back: {why}", made.copy));
    if original.is_ip_rel_memory_operand() != copy.is_ip_rel_memory_operand() {
        // An absolute address stays absolute.
        assert_eq!(back.copy, made.copy);
    } else {
        assert_eq!(back.copy, code[..original.len()]);
    }
}

fn decode(code: &[u8], at: u64) -> Option<Instruction> {
    let insn = Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode();
    (!insn.is_invalid()).then_some(insn)
}

/// Returns the instruction without its address and its way of addressing.
fn meaning(insn: &Instruction) -> Instruction {
    let mut insn = *insn;
    if insn.is_ip_rel_memory_operand() {
        let at = insn.ip_rel_memory_address();
        insn.set_memory_base(Register::None);
        insn.set_memory_displacement64(at);
    }
    insn.set_memory_displ_size(0);
    insn.set_len(0);
    insn.set_ip(0);
    insn
}
