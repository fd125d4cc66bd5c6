//! The code that matches texts with patterns: one routine, and a table for each pattern, behind the rest of a detour's
//! code.
//!
//! A table has two bytes for each element of its pattern: what it is, and its byte or the number of its brackets. The
//! brackets' sets follow, with a bit for each value of a byte.

use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, byte_ptr, dword_ptr, ptr, qword_ptr, registers as reg,
};

use super::error::DetourError;
use crate::filter::{Element, elements};

/// Bytes of an element in a table.
const ELEMENT: i32 = 2;
/// The length of a set in bytes, with a bit for each value of a byte, as a shift.
const SET_SHIFT: u32 = 5;
/// Longest table that a detour has.
const TABLE_MAX: usize = 1024;

// What elements are.
const BYTE: u8 = 0;
const ANY: u8 = 1;
const ONE_OF: u8 = 2;
const TEXT: u8 = 3;

/// The patterns that a detour matches.
pub(super) struct Globs {
    routine: CodeLabel,
    tables: Vec<(CodeLabel, Vec<u8>)>,
}

impl Globs {
    pub(super) fn new(a: &mut CodeAssembler) -> Self {
        Self {
            routine: a.create_label(),
            tables: Vec::new(),
        }
    }

    /// Goes to `no` unless the text from RSI to RCX is like a pattern. Uses RAX, RDX, RDI, R8 and R10, and RSI.
    pub(super) fn matches(
        &mut self,
        a: &mut CodeAssembler,
        pattern: &[u8],
        no: CodeLabel,
    ) -> Result<(), DetourError> {
        let elements = elements(pattern);
        let table = table(&elements);
        if table.len() > TABLE_MAX {
            return Err(DetourError::Pattern);
        }
        let label = a.create_label();
        a.lea(reg::rdi, ptr(label))?;
        a.lea(
            reg::rdx,
            qword_ptr(reg::rdi + elements.len() * ELEMENT as usize),
        )?;
        a.call(self.routine)?;
        a.jb(no)?;
        self.tables.push((label, table));
        Ok(())
    }

    /// Writes the routine and the tables, if there are any.
    pub(super) fn write(self, a: &mut CodeAssembler) -> Result<(), DetourError> {
        if self.tables.is_empty() {
            return Ok(());
        }
        routine(a, self.routine)?;
        for (mut label, table) in self.tables {
            a.set_label(&mut label)?;
            a.db(&table)?;
        }
        Ok(())
    }
}

/// Returns the table of a pattern: one byte at least.
fn table(elements: &[Element]) -> Vec<u8> {
    let mut table = Vec::new();
    let mut sets = Vec::new();
    for element in elements {
        table.extend(match element {
            Element::Byte(byte) => [BYTE, *byte],
            Element::Any => [ANY, 0],
            Element::Text => [TEXT, 0],
            Element::OneOf(set) => {
                // A table with more than 255 sets is too long.
                let number = (sets.len() >> SET_SHIFT) as u8;
                sets.extend(set);
                [ONE_OF, number]
            }
        });
    }
    table.append(&mut sets);
    if table.is_empty() {
        table.push(0);
    }
    table
}

/// Writes the routine that matches the text from RSI to RCX with the elements from RDI to RDX: the carry flag is
/// set if it doesn't match. Uses RAX, R8 and R10. The last `*` is tried at each place, as in
/// [`Pattern`](crate::filter::Pattern).
fn routine(a: &mut CodeAssembler, mut routine: CodeLabel) -> Result<(), DetourError> {
    let [mut next, mut same, mut star, mut back, mut tail, mut no] =
        std::array::from_fn(|_| a.create_label());
    let [mut one_of, mut matches] = std::array::from_fn(|_| a.create_label());
    a.set_label(&mut routine)?;
    a.xor(reg::r8d, reg::r8d)?;
    a.set_label(&mut next)?;
    a.cmp(reg::rsi, reg::rcx)?;
    a.je(tail)?;
    a.cmp(reg::rdi, reg::rdx)?;
    a.je(back)?;
    a.mov(reg::al, byte_ptr(reg::rdi))?;
    a.cmp(reg::al, i32::from(TEXT))?;
    a.je(star)?;
    a.cmp(reg::al, i32::from(ANY))?;
    a.je(same)?;
    a.cmp(reg::al, i32::from(ONE_OF))?;
    a.je(one_of)?;
    a.mov(reg::al, byte_ptr(reg::rdi + 1))?;
    a.cmp(reg::al, byte_ptr(reg::rsi))?;
    a.jne(back)?;
    a.set_label(&mut same)?;
    a.add(reg::rdi, ELEMENT)?;
    a.inc(reg::rsi)?;
    a.jmp(next)?;
    a.set_label(&mut one_of)?;
    a.movzx(reg::eax, byte_ptr(reg::rdi + 1))?;
    a.shl(reg::eax, SET_SHIFT)?;
    a.add(reg::rax, reg::rdx)?;
    a.push(reg::rcx)?;
    a.movzx(reg::ecx, byte_ptr(reg::rsi))?;
    a.bt(dword_ptr(reg::rax), reg::ecx)?;
    a.pop(reg::rcx)?;
    a.jb(same)?;
    a.jmp(back)?;
    a.set_label(&mut star)?;
    a.add(reg::rdi, ELEMENT)?;
    a.mov(reg::r8, reg::rdi)?;
    a.mov(reg::r10, reg::rsi)?;
    a.jmp(next)?;
    a.set_label(&mut back)?;
    a.test(reg::r8, reg::r8)?;
    a.je(no)?;
    a.inc(reg::r10)?;
    a.mov(reg::rsi, reg::r10)?;
    a.mov(reg::rdi, reg::r8)?;
    a.jmp(next)?;
    a.set_label(&mut no)?;
    a.stc()?;
    a.ret()?;
    a.set_label(&mut tail)?;
    a.cmp(reg::rdi, reg::rdx)?;
    a.je(matches)?;
    a.cmp(byte_ptr(reg::rdi), i32::from(TEXT))?;
    a.jne(no)?;
    a.add(reg::rdi, ELEMENT)?;
    a.jmp(tail)?;
    a.set_label(&mut matches)?;
    a.clc()?;
    Ok(a.ret()?)
}
