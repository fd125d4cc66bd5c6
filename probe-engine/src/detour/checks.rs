//! Conditions in a detour: a hit that doesn't meet one goes straight to the region's copies.

use iced_x86::code_asm::{CodeAssembler, CodeLabel, qword_ptr};
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};

use super::environment::Environment;
use super::error::DetourError;
use super::live::Dead;
use super::saved;
use super::saved::{Needed, RAX, RSP, Saved, gpr, hold_flags, on_stack, register, release_flags};
use crate::condition::{Comparison, Operand, Relation};

/// Where a compared value is.
enum Value {
    Register(Register),
    Memory(MemoryOperand),
}

/// What is left to write: where a hit goes that doesn't meet the condition.
pub(super) struct Unmet {
    label: CodeLabel,
    stack: Saved,
    needed: Needed,
    holds_flags: bool,
}

/// Writes the checks. A hit that meets all of them goes on behind, with everything that is `needed` as at the probe. A
/// hit that doesn't goes to `region`, by way of the returned code if there is some.
pub(super) fn write(
    a: &mut CodeAssembler,
    environment: &Environment,
    condition: &[Comparison],
    (dead, needed): (Dead, Needed),
    region: CodeLabel,
) -> Result<Option<Unmet>, DetourError> {
    if condition.is_empty() {
        return Ok(None);
    }
    let mut condition = condition.to_vec();
    condition.sort_by_key(cost);
    // The registers that are compared must keep their values until then.
    let operands = condition.iter().filter_map(|check| match check.operand {
        Operand::Register { number, .. } => Some(number & 15),
        _ => None,
    });
    let before = operands.clone().fold(needed, Needed::and_register);
    let scratch = saved::scratch(dead, before, &[RAX]);
    let uses_scratch = condition.iter().any(|check| cost(check) > 1);
    let holds_flags = needed.flags();

    let to_save = [holds_flags.then_some(RAX), uses_scratch.then_some(scratch)];
    let mut to_save: Vec<u8> = to_save
        .into_iter()
        .flatten()
        .filter(|number| before.register(*number))
        .collect();
    if !to_save.is_empty() && operands.clone().any(|number| number == RSP) {
        to_save.insert(0, RSP);
    }
    let mut stack = Saved::default();
    for number in to_save {
        stack.save(a, number)?;
    }
    if holds_flags {
        hold_flags(a)?;
    }
    let restores = holds_flags || stack.depth() != 0;
    let label = if restores { a.create_label() } else { region };
    for check in &condition {
        one(a, environment, check, (&stack, scratch))?;
        leave(a, check, label)?;
    }
    let unmet = Unmet {
        label,
        stack,
        needed,
        holds_flags,
    };
    unmet.restore(a)?;
    Ok(restores.then_some(unmet))
}

impl Unmet {
    fn restore(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.holds_flags {
            release_flags(a)?;
        }
        self.stack.restore(a, self.needed)
    }

    /// Writes the way to `region`.
    pub(super) fn write(
        mut self,
        a: &mut CodeAssembler,
        region: CodeLabel,
    ) -> Result<(), IcedError> {
        a.set_label(&mut self.label)?;
        a.zero_bytes()?;
        self.restore(a)?;
        a.jmp(region)
    }
}

/// About how many instructions are before the comparison: 0 or 1 if it needs no other register.
fn cost(check: &Comparison) -> u8 {
    match check.operand {
        Operand::Register { .. } if immediate(check).is_some() => 0,
        Operand::Cpu => 1,
        Operand::Register { .. } => 2,
        Operand::Pid | Operand::Tgid => 3,
    }
}

/// The constant as an instruction's immediate; `None` if that would take 64 bits.
fn immediate(check: &Comparison) -> Option<i32> {
    let constant = check.constant;
    Some(match check.operand.size() {
        1 => i32::from(constant as i8),
        2 => i32::from(constant as i16),
        4 => constant as i32,
        _ => i32::try_from(constant.cast_signed()).ok()?,
    })
}

/// Writes a comparison.
fn one(
    a: &mut CodeAssembler,
    environment: &Environment,
    check: &Comparison,
    (stack, scratch): (&Saved, u8),
) -> Result<(), DetourError> {
    let size = check.operand.size();
    let value = match check.operand {
        Operand::Register { number, size } => match stack.of(number & 15) {
            Some(at) => Value::Memory(on_stack(at)),
            None => Value::Register(register(number, size)),
        },
        Operand::Cpu => Value::Memory(of_cpu(known(
            environment.variables.cpu_number,
            "cpu_number",
        )?)),
        Operand::Pid | Operand::Tgid => {
            let (member, name) = match check.operand {
                Operand::Pid => (environment.variables.pid, "task_struct.pid"),
                _ => (environment.variables.tgid, "task_struct.tgid"),
            };
            let member = known(member.and_then(|at| i32::try_from(at).ok()), name)?;
            let current = known(environment.variables.current_task, "current_task")?;
            a.mov(gpr(scratch), qword_ptr(current).gs())?;
            let task = register(scratch, 8);
            Value::Memory(MemoryOperand::with_base_displ(task, member.into()))
        }
    };
    let tests = check.relation == Relation::Common;
    let instruction = if let Some(immediate) = immediate(check) {
        let code = match (size, tests) {
            (1, false) => Code::Cmp_rm8_imm8,
            (2, false) => Code::Cmp_rm16_imm16,
            (4, false) => Code::Cmp_rm32_imm32,
            (_, false) => Code::Cmp_rm64_imm32,
            (1, true) => Code::Test_rm8_imm8,
            (2, true) => Code::Test_rm16_imm16,
            (4, true) => Code::Test_rm32_imm32,
            (_, true) => Code::Test_rm64_imm32,
        };
        match value {
            Value::Register(register) => Instruction::with2(code, register, immediate)?,
            Value::Memory(memory) => Instruction::with2(code, memory, immediate)?,
        }
    } else {
        a.mov(gpr(scratch), check.constant)?;
        let constant = register(scratch, 8);
        let code = if tests {
            Code::Test_rm64_r64
        } else {
            Code::Cmp_rm64_r64
        };
        match value {
            Value::Register(register) => Instruction::with2(code, register, constant)?,
            Value::Memory(memory) => Instruction::with2(code, memory, constant)?,
        }
    };
    Ok(a.add_instruction(instruction)?)
}

/// Jumps if the comparison's result isn't what is wanted.
fn leave(a: &mut CodeAssembler, check: &Comparison, to: CodeLabel) -> Result<(), IcedError> {
    use Relation::{Common, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    match (check.relation, check.signed) {
        (Equal, _) => a.jne(to),
        (NotEqual | Common, _) => a.je(to),
        (Less, true) => a.jge(to),
        (LessOrEqual, true) => a.jg(to),
        (Greater, true) => a.jle(to),
        (GreaterOrEqual, true) => a.jl(to),
        (Less, false) => a.jae(to),
        (LessOrEqual, false) => a.ja(to),
        (Greater, false) => a.jbe(to),
        (GreaterOrEqual, false) => a.jb(to),
    }
}

/// A per-CPU variable.
fn of_cpu(displacement: i32) -> MemoryOperand {
    // With 4 the address would have 32 bits.
    const BYTES: u32 = 8;
    MemoryOperand::new(
        Register::None,
        Register::None,
        1,
        displacement.into(),
        BYTES,
        false,
        Register::GS,
    )
}

fn known<T>(found: Option<T>, name: &'static str) -> Result<T, DetourError> {
    found.ok_or(DetourError::Unknown { name })
}
