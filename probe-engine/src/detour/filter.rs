//! The code of a filter: it decides by the values on the stack, and by the task.

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, byte_ptr, dword_ptr, qword_ptr, registers as reg,
    word_ptr,
};

use super::environment::Environment;
use super::error::DetourError;
use super::globs::Globs;
use super::values::ValueLayout;
use crate::condition::Relation;
use crate::filter::{Filter, Number, Pattern, Text};
use crate::value::Value;

/// Bytes of `task_struct.comm`, its NUL included (`TASK_COMM_LEN`, `include/linux/sched.h`).
const COMM_LEN: usize = 16;

/// The code of a filter while it is written.
pub(super) struct FilterCode<'a> {
    pub(super) environment: &'a Environment,
    pub(super) layout: &'a ValueLayout,
    pub(super) globs: Globs,
}

/// Returns true if there is code for a filter of these values.
pub(super) fn has_code(
    filter: &Filter,
    environment: &Environment,
    values: &[Value],
) -> Result<bool, DetourError> {
    let mut a = CodeAssembler::new(64)?;
    let mut code = FilterCode {
        environment,
        layout: &ValueLayout::of(values, Some(filter)),
        globs: Globs::new(&mut a),
    };
    let unmet = a.create_label();
    Ok(code.branch(&mut a, filter, false, unmet).is_ok())
}

impl FilterCode<'_> {
    /// Goes to `to` if the hit meets the filter, or if it doesn't, as `when` says; else execution goes on behind.
    pub(super) fn branch(
        &mut self,
        a: &mut CodeAssembler,
        filter: &Filter,
        when: bool,
        to: CodeLabel,
    ) -> Result<(), DetourError> {
        match filter {
            Filter::Not(filter) => self.branch(a, filter, !when, to),
            Filter::All(filters) => self.each(a, filters, (when, true), to),
            Filter::Any(filters) => self.each(a, filters, (when, false), to),
            Filter::Number {
                of,
                relation,
                constant,
            } => self.leaf(a, when, to, |this, a, no| {
                this.number(a, *of, no)?;
                compare(a, *of, *constant, *relation)?;
                Ok(leave(a, *of, *relation, no)?)
            }),
            Filter::Text { of, pattern } => {
                self.leaf(a, when, to, |this, a, no| match (of, pattern) {
                    (Text::Comm, Pattern::Same(text)) => this.comm_is(a, text, no),
                    (Text::Value(index), Pattern::Same(text)) => this.value_is(a, *index, text, no),
                    (_, Pattern::Glob(pattern)) => this.matches(a, *of, pattern, no),
                })
            }
        }
    }

    /// Writes several filters, of which a hit must meet all, or any.
    fn each(
        &mut self,
        a: &mut CodeAssembler,
        filters: &[Filter],
        (when, is_all): (bool, bool),
        to: CodeLabel,
    ) -> Result<(), DetourError> {
        if when != is_all {
            // The result of one filter is enough to go there.
            for filter in filters {
                self.branch(a, filter, when, to)?;
            }
            return Ok(());
        }
        let mut skip = a.create_label();
        for filter in filters {
            self.branch(a, filter, !when, skip)?;
        }
        a.jmp(to)?;
        a.set_label(&mut skip)?;
        Ok(a.zero_bytes()?)
    }

    /// Writes a comparison. `test` goes to its label if the comparison isn't met.
    fn leaf(
        &mut self,
        a: &mut CodeAssembler,
        when: bool,
        to: CodeLabel,
        test: impl FnOnce(&mut Self, &mut CodeAssembler, CodeLabel) -> Result<(), DetourError>,
    ) -> Result<(), DetourError> {
        if !when {
            return test(self, a, to);
        }
        let mut skip = a.create_label();
        test(self, a, skip)?;
        a.jmp(to)?;
        a.set_label(&mut skip)?;
        Ok(a.zero_bytes()?)
    }

    /// Brings a number to RAX, extended to 64 bits.
    fn number(&self, a: &mut CodeAssembler, of: Number, no: CodeLabel) -> Result<(), DetourError> {
        let variables = &self.environment.variables;
        match of {
            Number::Value { index, .. } => {
                self.to_value(a, index)?;
                a.cmp(qword_ptr(reg::rdi), -1)?;
                a.je(no)?;
                a.mov(reg::rax, qword_ptr(reg::rdi + 8))?;
                let (shift, width, signed) = of.bits();
                let above = 64_u32.saturating_sub(u32::from(shift) + u32::from(width));
                if above > 0 {
                    a.shl(reg::rax, above)?;
                }
                let unused = 64 - u32::from(width);
                match (unused, signed) {
                    (0, _) => Ok(()),
                    (_, true) => Ok(a.sar(reg::rax, unused)?),
                    (_, false) => Ok(a.shr(reg::rax, unused)?),
                }
            }
            Number::Pid | Number::Tgid => {
                let (member, name) = match of {
                    Number::Pid => (variables.pid, "task_struct.pid"),
                    _ => (variables.tgid, "task_struct.tgid"),
                };
                let member = member.and_then(|at| i32::try_from(at).ok());
                let member = member.ok_or(DetourError::Unknown { name })?;
                self.task(a, reg::rdi)?;
                Ok(a.mov(reg::eax, dword_ptr(reg::rdi + member))?)
            }
            Number::Cpu => {
                let number = variables.cpu_number;
                let number = number.ok_or(DetourError::Unknown { name: "cpu_number" })?;
                Ok(a.mov(reg::eax, dword_ptr(number).gs())?)
            }
        }
    }

    fn task(&self, a: &mut CodeAssembler, to: AsmRegister64) -> Result<(), DetourError> {
        let current = self.environment.variables.current_task;
        let name = "current_task";
        let current = current.ok_or(DetourError::Unknown { name })?;
        Ok(a.mov(to, qword_ptr(current).gs())?)
    }

    /// Brings the address of a value's first word to RDI.
    fn to_value(&self, a: &mut CodeAssembler, index: usize) -> Result<(), DetourError> {
        let slot = self.layout.address_of(index);
        let slot = slot.ok_or(DetourError::Unknown {
            name: "filter's value",
        })?;
        Ok(a.mov(reg::rdi, qword_ptr(reg::rsp + slot))?)
    }

    /// Brings the address of the task's name to RDI.
    fn to_comm(&self, a: &mut CodeAssembler) -> Result<(), DetourError> {
        let name = "task_struct.comm";
        let comm = self.environment.variables.comm;
        let comm = comm.and_then(|at| i32::try_from(at).ok());
        let comm = comm.ok_or(DetourError::Unknown { name })?;
        self.task(a, reg::rdi)?;
        Ok(a.add(reg::rdi, comm)?)
    }

    fn comm_is(
        &self,
        a: &mut CodeAssembler,
        text: &[u8],
        no: CodeLabel,
    ) -> Result<(), DetourError> {
        if text.len() >= COMM_LEN || text.contains(&0) {
            return Ok(a.jmp(no)?);
        }
        self.to_comm(a)?;
        // The NUL is compared too.
        let text: Vec<u8> = text.iter().copied().chain([0]).collect();
        same_bytes(a, 0, &text, no)
    }

    fn value_is(
        &self,
        a: &mut CodeAssembler,
        index: usize,
        text: &[u8],
        no: CodeLabel,
    ) -> Result<(), DetourError> {
        let Ok(len) = i32::try_from(text.len()) else {
            return Ok(a.jmp(no)?);
        };
        self.to_value(a, index)?;
        a.cmp(qword_ptr(reg::rdi), len)?;
        a.jne(no)?;
        same_bytes(a, 8, text, no)
    }

    fn matches(
        &mut self,
        a: &mut CodeAssembler,
        of: Text,
        pattern: &[u8],
        no: CodeLabel,
    ) -> Result<(), DetourError> {
        match of {
            Text::Value(index) => {
                self.to_value(a, index)?;
                a.mov(reg::rcx, qword_ptr(reg::rdi))?;
                a.cmp(reg::rcx, -1)?;
                a.je(no)?;
                a.lea(reg::rsi, qword_ptr(reg::rdi + 8))?;
                a.add(reg::rcx, reg::rsi)?;
            }
            Text::Comm => {
                self.to_comm(a)?;
                a.mov(reg::rsi, reg::rdi)?;
                let [mut next, mut end] = std::array::from_fn(|_| a.create_label());
                a.lea(reg::rcx, qword_ptr(reg::rdi + COMM_LEN))?;
                a.set_label(&mut next)?;
                a.cmp(byte_ptr(reg::rdi), 0)?;
                a.je(end)?;
                a.inc(reg::rdi)?;
                a.cmp(reg::rdi, reg::rcx)?;
                a.jb(next)?;
                a.set_label(&mut end)?;
                a.mov(reg::rcx, reg::rdi)?;
            }
        }
        self.globs.matches(a, pattern, no)
    }
}

/// Compares RAX with a constant.
fn compare(
    a: &mut CodeAssembler,
    of: Number,
    constant: u64,
    relation: Relation,
) -> Result<(), DetourError> {
    let constant = of.constant(constant);
    let tests = relation == Relation::Common;
    match (i32::try_from(constant.cast_signed()), tests) {
        (Ok(constant), false) => a.cmp(reg::rax, constant)?,
        (Ok(constant), true) => a.test(reg::rax, constant)?,
        (Err(_), _) => {
            a.mov(reg::rdx, constant)?;
            match tests {
                true => a.test(reg::rax, reg::rdx)?,
                false => a.cmp(reg::rax, reg::rdx)?,
            }
        }
    }
    Ok(())
}

/// Goes to `no` if the compared numbers aren't in this relation.
fn leave(
    a: &mut CodeAssembler,
    of: Number,
    relation: Relation,
    no: CodeLabel,
) -> Result<(), iced_x86::IcedError> {
    use Relation::{Common, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    let (_, _, signed) = of.bits();
    match (relation, signed) {
        (Equal, _) => a.jne(no),
        (NotEqual | Common, _) => a.je(no),
        (Less, true) => a.jge(no),
        (LessOrEqual, true) => a.jg(no),
        (Greater, true) => a.jle(no),
        (GreaterOrEqual, true) => a.jl(no),
        (Less, false) => a.jae(no),
        (LessOrEqual, false) => a.ja(no),
        (Greater, false) => a.jbe(no),
        (GreaterOrEqual, false) => a.jb(no),
    }
}

/// Goes to `no` unless these bytes are at RDI + `from`. Uses RAX.
fn same_bytes(
    a: &mut CodeAssembler,
    from: usize,
    bytes: &[u8],
    no: CodeLabel,
) -> Result<(), DetourError> {
    let (words, mut rest) = bytes.as_chunks::<8>();
    let mut at = from;
    for word in words {
        a.mov(reg::rax, u64::from_le_bytes(*word))?;
        a.cmp(qword_ptr(reg::rdi + at), reg::rax)?;
        a.jne(no)?;
        at += 8;
    }
    if let Some((part, left)) = rest.split_first_chunk::<4>() {
        a.cmp(dword_ptr(reg::rdi + at), i32::from_le_bytes(*part))?;
        a.jne(no)?;
        (rest, at) = (left, at + 4);
    }
    if let Some((part, left)) = rest.split_first_chunk::<2>() {
        a.cmp(
            word_ptr(reg::rdi + at),
            i32::from(i16::from_le_bytes(*part)),
        )?;
        a.jne(no)?;
        (rest, at) = (left, at + 2);
    }
    if let [byte] = rest {
        a.cmp(byte_ptr(reg::rdi + at), i32::from(byte.cast_signed()))?;
        a.jne(no)?;
    }
    Ok(())
}
