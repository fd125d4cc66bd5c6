//! Which registers no code reads any more: a detour needn't keep these.

use guest_state::GuestVirtAddr;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, RflagsBits,
};

use crate::insn::is_rep_string;
use crate::relocate::Raises;

/// CF, PF, AF, ZF, SF and OF.
const ARITHMETIC: u32 = RflagsBits::CF
    | RflagsBits::PF
    | RflagsBits::AF
    | RflagsBits::ZF
    | RflagsBits::SF
    | RflagsBits::OF;

/// Registers whose values no code will read any more, by their numbers in instruction encodings, and whether that is so
/// of the flags (CF, PF, AF, ZF, SF and OF).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Dead {
    /// Bit `n` is register `n`.
    pub registers: u16,
    /// All six arithmetic flags.
    pub flags: bool,
}

/// Returns what is dead before the instruction at `at` that `text` begins with: written whole before it is read, in a
/// straight line. What isn't settled at the first branch or the end of `text` counts as read.
///
/// `text` is what a detour executes itself, no more. A probe at an instruction behind that may record all registers.
/// The guest's own kprobes may too, and come without being announced. For the same reason nothing is settled from the
/// first instruction on that may raise an exception or meet a watchpoint. The calling convention, by which no code
/// *should* read RAX at a function's entry, says nothing either.
pub fn dead(text: &[u8], at: GuestVirtAddr) -> Dead {
    let mut scan = Scan::default();
    let mut factory = InstructionInfoFactory::new();
    let decoder = Decoder::with_ip(64, text, at.0, DecoderOptions::NONE);
    for insn in decoder {
        if insn.is_invalid() || Raises::by(&insn) != Raises::Nothing {
            break;
        }
        scan.look_at(&insn, &mut factory);
        if insn.flow_control() != FlowControl::Next {
            break;
        }
    }
    Dead {
        registers: scan.written,
        flags: scan.flags_read == 0 && scan.flags_written == ARITHMETIC,
    }
}

/// Whether each register was read or written first.
#[derive(Default)]
struct Scan {
    read: u16,
    written: u16,
    flags_read: u32,
    flags_written: u32,
}

impl Scan {
    fn look_at(&mut self, insn: &Instruction, factory: &mut InstructionInfoFactory) {
        let (mut read, mut written) = (0, 0);
        for used in factory.info(insn).used_registers() {
            let Some(bit) = bit(used.register()) else {
                continue;
            };
            match used.access() {
                // Writing 32 bits clears the others (SDM vol. 1, 3.4.1.1).
                OpAccess::Write if used.register().size() >= 4 => written |= bit,
                OpAccess::None | OpAccess::NoMemAccess => {}
                // A part of it is kept, or all of it may be.
                _ => read |= bit,
            }
        }
        self.read |= read & !self.written;
        self.written |= written & !self.read;
        self.flags_read |= insn.rflags_read() & ARITHMETIC & !self.flags_written;
        if !may_leave_flags(insn) {
            self.flags_written |= insn.rflags_modified() & ARITHMETIC;
        }
    }
}

fn bit(register: Register) -> Option<u16> {
    let number = register
        .is_gpr()
        .then(|| register.full_register().number())?;
    1u16.checked_shl(number.try_into().ok()?)
}

/// Returns true if flags may stay as they were, depending on a value: shifts by 0 (SDM vol. 2, SAL and its like), and
/// string comparisons of length 0.
fn may_leave_flags(insn: &Instruction) -> bool {
    let shifts = matches!(
        insn.mnemonic(),
        Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    );
    let by_cl = (0..insn.op_count()).any(|op| {
        insn.op_kind(op) == OpKind::Register && op > 0 && insn.op_register(op) == Register::CL
    });
    shifts && by_cl || is_rep_string(insn)
}

#[cfg(test)]
mod tests {
    use iced_x86::IcedError;
    use iced_x86::code_asm::{CodeAssembler, dword_ptr, qword_ptr, registers as reg};

    use super::*;

    type Code = fn(&mut CodeAssembler) -> Result<(), IcedError>;

    fn of(code: Code) -> Dead {
        let mut a = CodeAssembler::new(64).unwrap();
        code(&mut a).unwrap();
        dead(&a.assemble(0x1000).unwrap(), GuestVirtAddr(0x1000))
    }

    #[test]
    fn a_register_that_is_written_whole_before_it_is_read_is_dead() {
        const RAX: u16 = 1;
        const RCX: u16 = 2;
        let cases: [(Code, u16, bool); 10] = [
            (|a| a.mov(reg::eax, reg::ecx), RAX, false),
            (|a| a.lea(reg::rax, qword_ptr(reg::rax)), 0, false),
            (|a| a.mov(reg::ax, 1), 0, false),
            (|a| a.xor(reg::eax, reg::eax), RAX, true),
            (|a| a.cmove(reg::eax, reg::ecx), 0, false),
            (|a| a.add(reg::rcx, 1), 0, true),
            (|a| a.adc(reg::rcx, 1), 0, false),
            (|a| a.inc(reg::rcx), 0, false),
            (
                |a| {
                    a.add(reg::rdx, 1)?;
                    a.mov(reg::rcx, reg::rdx)
                },
                RCX,
                true,
            ),
            (
                |a| {
                    a.jmp(reg::rdx)?;
                    a.xor(reg::eax, reg::eax)
                },
                0,
                false,
            ),
        ];
        for (index, (code, registers, flags)) in cases.into_iter().enumerate() {
            assert_eq!(of(code), Dead { registers, flags }, "case {index}");
        }
    }

    #[test]
    fn a_register_that_a_handler_may_look_at_is_not_dead() {
        let cases: [Code; 4] = [
            |a| a.push(reg::rax),
            |a| a.mov(reg::ecx, dword_ptr(reg::rcx)),
            |a| a.div(reg::rcx),
            |a| a.fadd_2(reg::st0, reg::st1),
        ];
        for (index, first) in cases.into_iter().enumerate() {
            let mut a = CodeAssembler::new(64).unwrap();
            first(&mut a).unwrap();
            a.xor(reg::eax, reg::eax).unwrap();
            let dead = dead(&a.assemble(0x1000).unwrap(), GuestVirtAddr(0x1000));
            assert_eq!(dead, Dead::default(), "case {index}");
        }
    }

    #[test]
    fn nothing_is_dead_before_what_is_no_instruction() {
        let none = Dead::default();
        assert_eq!(dead(&[], GuestVirtAddr(0x1000)), none);
        assert_eq!(dead(&[0x06, 0x31, 0xc0], GuestVirtAddr(0x1000)), none);
    }
}
