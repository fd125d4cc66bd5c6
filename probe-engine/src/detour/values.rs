//! The code that takes a hit's values, one behind the other, in the form of a record
//! ([`crate::value::Recorded`]).
//!
//! They are taken on the stack first. So a hit that doesn't meet its filter leaves nothing, and a record is as long
//! as its values are.

use guest_state::GuestVirtAddr;
use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, dword_ptr, qword_ptr, registers as reg,
};

use super::environment::Environment;
use super::error::DetourError;
use super::pointers::{Routines, TO as COPIED_TO, VALUE};
use super::saved::{RSP, Saved, gpr};
use super::stack_pieces;
use crate::calls::layout::{ENTRY, ORIGIN};
use crate::fetch::{Fetch, Fetches};
use crate::filter::Filter;
use crate::value::{Base, FAULT, Load, STATUS, Space, Take, Value, encoded_max};

/// Registers that are used: those that a C function may change.
pub(super) const USED: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

const WORD: usize = 8;

/// When values are taken, which decides where the registers are that they begin with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Moment {
    /// At a hit of the instruction at this address. Registers are as they were, but for those put aside.
    Hit(GuestVirtAddr),
    /// At the return of a followed call, whose place in the table ([`crate::calls`]) is in [`CALL`]. All registers
    /// have been put aside.
    Return,
}

/// Has the address of the call that returns.
pub(super) const CALL: AsmRegister64 = reg::rbx;

/// Where values are on the stack: first the addresses of those that a filter looks at, then all of them.
pub(super) struct ValueLayout {
    /// The values whose addresses are kept, in their order.
    looked_at: Vec<usize>,
    len: u64,
}

impl ValueLayout {
    /// The layout of values, some of which a filter looks at.
    pub(super) fn of(values: &[Value], filter: Option<&Filter>) -> Self {
        let mut looked_at = filter.map_or_else(Vec::new, Filter::values);
        looked_at.sort_unstable();
        looked_at.dedup();
        Self {
            len: (looked_at.len() * WORD) as u64 + encoded_max(values),
            looked_at,
        }
    }

    /// Its length in bytes, a multiple of 8.
    pub(super) fn len_bytes(&self) -> i32 {
        self.len as i32
    }

    /// Where the values begin, in bytes from its start.
    pub(super) fn values(&self) -> i32 {
        (self.looked_at.len() * WORD) as i32
    }

    /// Where the address of a value is, in bytes from its start.
    pub(super) fn address_of(&self, index: usize) -> Option<i32> {
        let slot = self.looked_at.iter().position(|it| *it == index)?;
        Some((slot * WORD) as i32)
    }
}

/// Takes values onto the stack, at RSP. Then [`VALUE`] is behind the last of them. The registers of [`USED`] have been
/// put aside.
pub(super) fn take(
    a: &mut CodeAssembler,
    environment: &Environment,
    (values, layout): (&[Value], &ValueLayout),
    (stack, moment): (&Saved, Moment),
    routines: &Routines,
) -> Result<(), DetourError> {
    a.lea(VALUE, qword_ptr(reg::rsp + layout.values()))?;
    for (index, value) in values.iter().enumerate() {
        if let Some(slot) = layout.address_of(index) {
            a.mov(qword_ptr(reg::rsp + slot), VALUE)?;
        }
        let mut fault = a.create_label();
        let mut next = a.create_label();
        base(a, environment, value.base, (stack, moment))?;
        for load in &value.loads {
            lead(a, *load, fault)?;
            a.call(routines.word)?;
            a.jb(fault)?;
            a.mov(reg::rdi, reg::rax)?;
        }
        end(a, environment, value.take, fault, routines)?;
        a.jmp(next)?;
        a.set_label(&mut fault)?;
        a.mov(qword_ptr(VALUE), FAULT as i32)?;
        a.add(VALUE, STATUS as i32)?;
        a.set_label(&mut next)?;
        a.zero_bytes()?;
    }
    Ok(())
}

/// Brings the word that a value begins with to RDI.
fn base(
    a: &mut CodeAssembler,
    environment: &Environment,
    base: Base,
    (stack, moment): (&Saved, Moment),
) -> Result<(), DetourError> {
    let variables = environment.variables;
    let known = |found: Option<i32>, name| found.ok_or(DetourError::Unknown { name });
    match base {
        Base::Register(number) => match stack.of(number) {
            Some(kept) => a.mov(reg::rdi, qword_ptr(reg::rsp + kept))?,
            None if number == RSP => {
                a.lea(reg::rdi, qword_ptr(reg::rsp + moment.rsp(stack)))?;
            }
            None => a.mov(reg::rdi, gpr(number))?,
        },
        Base::EntryRegister(number) => {
            let mut entry = Fetches::ALL.layout();
            let found = entry.find(|(fetch, _)| *fetch == Fetch::Register(number));
            let (Moment::Return, Some((_, at))) = (moment, found) else {
                return Err(DetourError::Unknown {
                    name: "register at the function's entry",
                });
            };
            a.mov(reg::rdi, qword_ptr(CALL + (ENTRY + at)))?;
        }
        Base::Flags => {
            let kept = stack.of_flags();
            let kept = kept.ok_or(DetourError::Unknown { name: "rflags" })?;
            a.mov(reg::rdi, qword_ptr(reg::rsp + kept))?;
        }
        Base::InstructionPointer => match moment {
            Moment::Hit(at) => a.mov(reg::rdi, at.0)?,
            Moment::Return => a.mov(reg::rdi, qword_ptr(CALL + ORIGIN))?,
        },
        Base::Constant(constant) => a.mov(reg::rdi, constant)?,
        Base::Task => {
            let current = known(variables.current_task, "current_task")?;
            a.mov(reg::rdi, qword_ptr(current).gs())?;
        }
        Base::Cpu => {
            let number = known(variables.cpu_number, "cpu_number")?;
            a.mov(reg::edi, dword_ptr(number).gs())?;
        }
    }
    Ok(())
}

/// Makes RDI the address that a pointer in it leads to, if it may be followed.
fn lead(a: &mut CodeAssembler, load: Load, fault: CodeLabel) -> Result<(), DetourError> {
    if load.offset != 0 {
        match i32::try_from(load.offset) {
            Ok(offset) => a.add(reg::rdi, offset)?,
            Err(_) => {
                a.mov(reg::rax, load.offset.cast_unsigned())?;
                a.add(reg::rdi, reg::rax)?;
            }
        }
    }
    if load.space == Space::User {
        a.test(reg::rdi, reg::rdi)?;
        a.js(fault)?;
    }
    Ok(())
}

/// Takes what RDI leads to, and moves [`VALUE`] behind it.
fn end(
    a: &mut CodeAssembler,
    environment: &Environment,
    take: Take,
    fault: CodeLabel,
    routines: &Routines,
) -> Result<(), DetourError> {
    let whole_words = |len: u16| i32::from(len.next_multiple_of(WORD as u16));
    match take {
        Take::Word => {
            a.mov(qword_ptr(VALUE), WORD as i32)?;
            a.mov(qword_ptr(VALUE + WORD), reg::rdi)?;
            a.add(VALUE, STATUS as i32 + WORD as i32)?;
        }
        Take::Memory { at, len: 8 } => {
            lead(a, at, fault)?;
            a.call(routines.word)?;
            a.jb(fault)?;
            a.mov(qword_ptr(VALUE), WORD as i32)?;
            a.mov(qword_ptr(VALUE + WORD), reg::rax)?;
            a.add(VALUE, STATUS as i32 + WORD as i32)?;
        }
        Take::Memory { at, len } => {
            lead(a, at, fault)?;
            if len > 0 {
                a.mov(reg::edx, u32::from(len))?;
                a.call(routines.copy)?;
                a.jb(fault)?;
            }
            a.mov(qword_ptr(VALUE), i32::from(len))?;
            a.add(VALUE, STATUS as i32 + whole_words(len))?;
        }
        Take::Stack { at, most } => {
            lead(a, at, fault)?;
            stack_pieces::take(a, environment, most, routines)?;
            a.lea(reg::rax, qword_ptr(COPIED_TO - WORD))?;
            a.sub(reg::rax, VALUE)?;
            put_len(a)?;
        }
        Take::Text { at, most } => {
            lead(a, at, fault)?;
            a.xor(reg::eax, reg::eax)?;
            if most > 0 {
                a.mov(reg::edx, u32::from(most))?;
                a.call(routines.text)?;
                a.jb(fault)?;
            }
            put_len(a)?;
        }
    }
    Ok(())
}

/// Ends a value whose length in bytes is in RAX.
fn put_len(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(qword_ptr(VALUE), reg::rax)?;
    a.add(reg::rax, STATUS as i32 + WORD as i32 - 1)?;
    a.and(reg::rax, -(WORD as i32))?;
    a.add(VALUE, reg::rax)
}

impl Moment {
    /// The distance in bytes from RSP, with all of `stack` put aside, to where it was. At a return that is behind the
    /// return address, which is in its place once more.
    pub(super) fn rsp(self, stack: &Saved) -> i32 {
        match self {
            Self::Hit(_) => stack.depth(),
            Self::Return => stack.depth() + WORD as i32,
        }
    }
}
