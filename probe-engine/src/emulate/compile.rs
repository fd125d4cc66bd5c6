//! From a decoded instruction to what is carried out at a hit.

use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register};

use super::compiled::{
    Address, Arithmetic, Base, BranchTo, Compiled, Count, InsnOperand, Operation, Reg, SegmentBase,
    Shift, Unary, Width,
};
use super::flags::{AC, CF, DF, IF};
use crate::insn::Prefixes;

/// Returns what does as `insn` does, or why that can't be done.
///
/// # Errors
/// The reason to let the CPU do it, as a user reads it.
pub(crate) fn compile(insn: &Instruction, prefixes: Prefixes) -> Result<Compiled, &'static str> {
    if prefixes.lock {
        return Err("it has a lock prefix");
    }
    let branch = matches!(
        insn.mnemonic(),
        Mnemonic::Call
            | Mnemonic::Jmp
            | Mnemonic::Ret
            | Mnemonic::Jrcxz
            | Mnemonic::Loop
            | Mnemonic::Loope
            | Mnemonic::Loopne
    ) || insn.condition_code() != ConditionCode::None
        && insn.op0_kind() == OpKind::NearBranch64;
    // An EPYC takes this form of it for `xchg`, whatever comes before.
    if insn.mnemonic() == Mnemonic::Pause && prefixes.rex_b {
        return Err("its REX prefix makes it another instruction on some CPUs");
    }
    // `movsxd` to 16 bits reads 2 bytes on Intel's CPUs and 4 on AMD's.
    let extends = insn.code() == Code::Movsxd_r16_rm16;
    if (branch || extends) && prefixes.operand_size {
        return Err("its operand-size prefix means different things to different CPUs");
    }
    // `bnd` and `rep ret` are only hints; elsewhere such a prefix changes the
    // instruction or is reserved: an EPYC takes `loope` under F2 for `loopne`.
    let counts = matches!(
        insn.mnemonic(),
        Mnemonic::Jrcxz | Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne
    );
    let hint = branch && !counts || matches!(insn.mnemonic(), Mnemonic::Pause | Mnemonic::Endbr64);
    if prefixes.repeat && !hint {
        return Err("it has a repeat prefix");
    }
    let operation = operation(insn).ok_or("it is not among the emulated instructions")?;
    // `nop` with a memory operand computes no address.
    let addresses = !matches!(operation, Operation::Nothing)
        && (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Memory)
        || matches!(operation, Operation::JumpCounting { .. });
    if prefixes.address_size && addresses {
        return Err("it uses 32-bit addresses");
    }
    let len = u8::try_from(insn.len()).map_err(|_| "it is too long")?;
    Ok(Compiled { len, operation })
}

fn operation(insn: &Instruction) -> Option<Operation> {
    let op = |i| operand(insn, i);
    let width = || operand_width(insn, 0);
    Some(match insn.mnemonic() {
        Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Pause => Operation::Nothing,
        Mnemonic::Mov => Operation::Move {
            width: width()?,
            to: op(0)?,
            from: op(1)?,
        },
        Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd => Operation::Extend {
            to: register(insn.op0_register())?,
            width: width()?,
            from: op(1)?,
            from_width: operand_width(insn, 1)?,
            signed: insn.mnemonic() != Mnemonic::Movzx,
        },
        Mnemonic::Lea => Operation::LoadAddress {
            to: register(insn.op0_register())?,
            width: width()?,
            // A segment has no part in `lea`.
            address: Address {
                segment: SegmentBase::Flat,
                ..address(insn)?
            },
        },
        Mnemonic::Add => arithmetic(insn, Arithmetic::Add)?,
        Mnemonic::Adc => arithmetic(insn, Arithmetic::Adc)?,
        Mnemonic::Sub => arithmetic(insn, Arithmetic::Sub)?,
        Mnemonic::Sbb => arithmetic(insn, Arithmetic::Sbb)?,
        Mnemonic::And => arithmetic(insn, Arithmetic::And)?,
        Mnemonic::Or => arithmetic(insn, Arithmetic::Or)?,
        Mnemonic::Xor => arithmetic(insn, Arithmetic::Xor)?,
        Mnemonic::Cmp => arithmetic(insn, Arithmetic::Cmp)?,
        Mnemonic::Test => arithmetic(insn, Arithmetic::Test)?,
        Mnemonic::Inc => unary(insn, Unary::Inc)?,
        Mnemonic::Dec => unary(insn, Unary::Dec)?,
        Mnemonic::Neg => unary(insn, Unary::Neg)?,
        Mnemonic::Not => unary(insn, Unary::Not)?,
        Mnemonic::Shl | Mnemonic::Sal => shift(insn, Shift::Left)?,
        Mnemonic::Shr => shift(insn, Shift::LogicalRight)?,
        Mnemonic::Sar => shift(insn, Shift::ArithmeticRight)?,
        Mnemonic::Xchg => Operation::Exchange {
            width: width()?,
            a: register(insn.op0_register())?,
            b: register(insn.op1_register())?,
        },
        Mnemonic::Cbw => Operation::ExtendA { width: Width::Word },
        Mnemonic::Cwde => Operation::ExtendA {
            width: Width::Double,
        },
        Mnemonic::Cdqe => Operation::ExtendA { width: Width::Quad },
        Mnemonic::Cwd => Operation::SignOfA { width: Width::Word },
        Mnemonic::Cdq => Operation::SignOfA {
            width: Width::Double,
        },
        Mnemonic::Cqo => Operation::SignOfA { width: Width::Quad },
        Mnemonic::Clc => Operation::Flag {
            mask: CF,
            set: false,
        },
        Mnemonic::Stc => Operation::Flag {
            mask: CF,
            set: true,
        },
        Mnemonic::Cmc => Operation::ComplementCarry,
        Mnemonic::Cld => Operation::Flag {
            mask: DF,
            set: false,
        },
        Mnemonic::Std => Operation::Flag {
            mask: DF,
            set: true,
        },
        Mnemonic::Clac => Operation::Flag {
            mask: AC,
            set: false,
        },
        Mnemonic::Stac => Operation::Flag {
            mask: AC,
            set: true,
        },
        Mnemonic::Cli => Operation::Flag {
            mask: IF,
            set: false,
        },
        Mnemonic::Sti => Operation::EnableInterrupts,
        Mnemonic::Hlt => Operation::Halt,
        _ => return stack_or_branch(insn),
    })
}

/// Compiles the instructions whose exact encoding matters, because others of the same name push or
/// branch with another size.
fn stack_or_branch(insn: &Instruction) -> Option<Operation> {
    let by = || insn.near_branch64().wrapping_sub(insn.next_ip());
    let counting = |count| Operation::JumpCounting { count, by: by() };
    Some(match insn.code() {
        Code::Push_r64 | Code::Push_rm64 | Code::Pushq_imm32 | Code::Pushq_imm8 => {
            Operation::Push(operand(insn, 0)?)
        }
        Code::Pop_r64 | Code::Pop_rm64 => Operation::Pop(operand(insn, 0)?),
        Code::Pushfq => Operation::PushFlags,
        Code::Popfq => Operation::PopFlags,
        Code::Leaveq => Operation::Leave,
        Code::Call_rel32_64 => Operation::Call(BranchTo::Relative(by())),
        Code::Call_rm64 => Operation::Call(BranchTo::Absolute(operand(insn, 0)?)),
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Operation::Jump(BranchTo::Relative(by())),
        Code::Jmp_rm64 => Operation::Jump(BranchTo::Absolute(operand(insn, 0)?)),
        Code::Retnq => Operation::Return { drop: 0 },
        Code::Retnq_imm16 => Operation::Return {
            drop: insn.immediate16(),
        },
        Code::Jrcxz_rel8_64 => counting(Count::IsZero),
        Code::Loop_rel8_64_RCX => counting(Count::NotZero),
        Code::Loope_rel8_64_RCX => counting(Count::NotZeroAndEqual),
        Code::Loopne_rel8_64_RCX => counting(Count::NotZeroAndNotEqual),
        _ => return conditional(insn),
    })
}

/// Compiles `jcc`, `setcc` and `cmovcc`.
fn conditional(insn: &Instruction) -> Option<Operation> {
    let condition = (insn.condition_code() as u8).checked_sub(1)?;
    if insn.is_jcc_short_or_near() {
        let by = insn.near_branch64().wrapping_sub(insn.next_ip());
        return (insn.op0_kind() == OpKind::NearBranch64)
            .then_some(Operation::JumpIf { condition, by });
    }
    match insn.op_count() {
        1 if operand_width(insn, 0)? == Width::Byte => Some(Operation::SetIf {
            condition,
            to: operand(insn, 0)?,
        }),
        2 if is_cmov(insn.code()) => Some(Operation::MoveIf {
            condition,
            width: operand_width(insn, 0)?,
            to: register(insn.op0_register())?,
            from: operand(insn, 1)?,
        }),
        _ => None,
    }
}

/// Returns true if it is `cmovcc`, told by its code: newer instructions have condition codes and two
/// operands as well (`cmpccxadd` has three).
fn is_cmov(code: Code) -> bool {
    (Code::Cmovo_r16_rm16..=Code::Cmovg_r64_rm64).contains(&code)
}

fn arithmetic(insn: &Instruction, kind: Arithmetic) -> Option<Operation> {
    let (to, from) = (operand(insn, 0)?, operand(insn, 1)?);
    Some(Operation::Arithmetic {
        kind,
        width: operand_width(insn, 0)?,
        to,
        from,
    })
}

fn unary(insn: &Instruction, kind: Unary) -> Option<Operation> {
    Some(Operation::Unary {
        kind,
        width: operand_width(insn, 0)?,
        operand: operand(insn, 0)?,
    })
}

fn shift(insn: &Instruction, kind: Shift) -> Option<Operation> {
    let (operand, count) = (operand(insn, 0)?, operand(insn, 1)?);
    Some(Operation::Shift {
        kind,
        width: operand_width(insn, 0)?,
        operand,
        count,
    })
}

/// Compiles an operand; `None` for anything but general registers, memory and immediates.
fn operand(insn: &Instruction, index: u32) -> Option<InsnOperand> {
    match insn.op_kind(index) {
        OpKind::Register => register(insn.op_register(index)).map(InsnOperand::Register),
        OpKind::Memory => address(insn).map(InsnOperand::Memory),
        OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => insn.try_immediate(index).ok().map(InsnOperand::Immediate),
        _ => None,
    }
}

fn operand_width(insn: &Instruction, index: u32) -> Option<Width> {
    match insn.op_kind(index) {
        OpKind::Register => Width::of_bytes(insn.op_register(index).size()),
        OpKind::Memory => Width::of_bytes(insn.memory_size().size()),
        _ => None,
    }
}

fn register(register: Register) -> Option<Reg> {
    let number = u8::try_from(register.full_register().number()).ok()?;
    let high = matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    );
    register.is_gpr().then_some(Reg { number, high })
}

fn address(insn: &Instruction) -> Option<Address> {
    address_of(
        insn,
        insn.memory_segment(),
        insn.memory_base(),
        insn.memory_index(),
        insn.memory_index_scale(),
        insn.memory_displacement64(),
    )
}

/// Makes an address of the parts that iced-x86 gives for it; `None` unless it is computed in 64
/// bits from general registers.
pub(super) fn address_of(
    insn: &Instruction,
    segment: Register,
    base: Register,
    index: Register,
    scale: u32,
    displacement: u64,
) -> Option<Address> {
    let number = |register: Register| {
        register
            .is_gpr64()
            .then(|| u8::try_from(register.number()).ok())
            .flatten()
    };
    let (base, displacement) = match base {
        Register::None => (Base::Zero, displacement),
        // Decoding adds the address; the code may run at another one.
        Register::RIP => (
            Base::NextInstruction,
            displacement.wrapping_sub(insn.next_ip()),
        ),
        register => (Base::Register(number(register)?), displacement),
    };
    let index = match index {
        Register::None => None,
        register => Some((number(register)?, u8::try_from(scale).ok()?)),
    };
    let segment = match segment {
        Register::FS => SegmentBase::Fs,
        Register::GS => SegmentBase::Gs,
        _ => SegmentBase::Flat,
    };
    Some(Address {
        base,
        index,
        displacement,
        segment,
    })
}
