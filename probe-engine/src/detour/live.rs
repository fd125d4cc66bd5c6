//! Which registers nobody reads any more: what a detour needn't keep.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, RflagsBits,
};

use super::Dead;
use crate::addr::GuestVirtAddr;
use crate::insn::is_rep_string;

/// CF, PF, AF, ZF, SF and OF.
const ARITHMETIC: u32 = RflagsBits::CF
    | RflagsBits::PF
    | RflagsBits::AF
    | RflagsBits::ZF
    | RflagsBits::SF
    | RflagsBits::OF;

/// Registers that no caller expects anything of and no argument is passed in: RAX, R10 and R11 (System
/// V ABI for x86-64, figure 3.4). RAX would have the number of vector arguments of a variadic function,
/// which the kernel doesn't use; R10 the static chain, which C hasn't.
const SCRATCH: u16 = 1 << 0 | 1 << 10 | 1 << 11;

/// More instructions than this aren't looked at.
const MOST: usize = 64;

/// What is dead before the instruction at `at` that `text` begins with: written whole before it is
/// read, in a straight line. Whatever is not settled at the first branch or the end of `text` counts
/// as read.
///
/// `text` has to end before anything that may be other code later, or go on elsewhere: sites that the
/// kernel patches, and instructions of its exception table.
///
/// At `c_entry`, behind the ftrace site of a function, what is not settled of the flags and the
/// registers that pass nothing to it is dead: ftrace itself relies on that (`ftrace_caller` in
/// `arch/x86/kernel/ftrace_64.S`; assembly functions have no such site).
pub fn dead(text: &[u8], at: GuestVirtAddr, c_entry: bool) -> Dead {
    let mut scan = Scan::default();
    let mut factory = InstructionInfoFactory::new();
    let decoder = Decoder::with_ip(64, text, at.0, DecoderOptions::NONE);
    for insn in decoder.into_iter().take(MOST) {
        if insn.is_invalid() {
            break;
        }
        scan.look_at(&insn, &mut factory);
        if insn.flow_control() != FlowControl::Next || scan.is_settled() {
            break;
        }
    }
    let by_convention = if c_entry { SCRATCH & !scan.read } else { 0 };
    Dead {
        registers: scan.written | by_convention,
        flags: scan.flags_read == 0 && (c_entry || scan.flags_written == ARITHMETIC),
    }
}

/// What has happened to each register first.
#[derive(Default)]
struct Scan {
    read: u16,
    written: u16,
    flags_read: u32,
    flags_written: u32,
}

impl Scan {
    fn is_settled(&self) -> bool {
        self.read | self.written == u16::MAX
            && (self.flags_read != 0 || self.flags_written == ARITHMETIC)
    }

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

/// Whether flags stay as they were, depending on a value: shifts by none (SDM vol. 2, SAL and its
/// like), and comparisons of nothing.
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
    use iced_x86::code_asm::{CodeAssembler, dword_ptr, registers as reg};

    use super::*;

    type Code = fn(&mut CodeAssembler) -> Result<(), IcedError>;

    fn of(code: Code, c_entry: bool) -> Dead {
        let mut a = CodeAssembler::new(64).unwrap();
        code(&mut a).unwrap();
        dead(&a.assemble(0x1000).unwrap(), GuestVirtAddr(0x1000), c_entry)
    }

    #[test]
    fn what_is_written_whole_before_it_is_read_is_dead() {
        const RAX: u16 = 1;
        const RCX: u16 = 2;
        let cases: [(Code, u16, bool); 12] = [
            (|a| a.mov(reg::eax, dword_ptr(reg::rcx)), RAX, false),
            (|a| a.mov(reg::eax, dword_ptr(reg::rax)), 0, false),
            (|a| a.mov(reg::ax, 1), 0, false),
            (|a| a.xor(reg::eax, reg::eax), RAX, true),
            (|a| a.cmove(reg::eax, reg::ecx), 0, false),
            (|a| a.add(reg::rcx, 1), 0, true),
            (|a| a.adc(reg::rcx, 1), 0, false),
            (|a| a.inc(reg::rcx), 0, false),
            (|a| a.shl(reg::rdx, reg::cl), 0, false),
            (
                |a| {
                    a.shl(reg::rdx, 1)?;
                    a.pop(reg::rcx)
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
            (
                |a| {
                    a.push(reg::rax)?;
                    a.xor(reg::eax, reg::eax)
                },
                0,
                true,
            ),
        ];
        for (index, (code, registers, flags)) in cases.into_iter().enumerate() {
            assert_eq!(of(code, false), Dead { registers, flags }, "case {index}");
        }
    }

    #[test]
    fn at_an_entry_what_passes_nothing_is_dead_unless_it_is_read() {
        let push: Code = |a| a.push(reg::rbx);
        let both = |a: &mut CodeAssembler| {
            a.mov(reg::rbx, reg::rax)?;
            a.adc(reg::rbx, reg::r10)
        };
        let dead = |registers, flags| Dead { registers, flags };
        assert_eq!(of(push, true), dead(1 << 0 | 1 << 10 | 1 << 11, true));
        assert_eq!(of(both, true), dead(1 << 3 | 1 << 11, false));
    }

    #[test]
    fn nothing_is_dead_before_what_is_no_instruction() {
        let none = Dead::default();
        assert_eq!(dead(&[], GuestVirtAddr(0x1000), false), none);
        assert_eq!(
            dead(&[0x06, 0x31, 0xc0], GuestVirtAddr(0x1000), false),
            none
        );
    }
}
