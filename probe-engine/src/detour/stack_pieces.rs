//! The code that takes the stack: a piece of it, or in an interrupt a piece of the CPU's stack for interrupts and one
//! of the stack that the interrupt has left.
//!
//! Source: Linux `arch/x86/include/asm/irq_stack.h` (`call_on_stack`): what RSP was is pushed on the empty stack first.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, qword_ptr, registers as reg};

use super::environment::Environment;
use super::pointers::{Routines, TO, VALUE};
use crate::value::{INTERRUPT_STACK_LEN, PIECE};

const WORD: i32 = 8;

/// Takes at most `most` bytes of the stack that RDI leads to. Then [`TO`] is behind them. They begin a word behind
/// [`VALUE`], as any value's do, with the length of the first piece; [`VALUE`] stays.
pub(super) fn take(
    a: &mut CodeAssembler,
    environment: &Environment,
    most: u16,
    routines: &Routines,
) -> Result<(), IcedError> {
    let [mut whole, mut partial, mut copied, mut out] = std::array::from_fn(|_| a.create_label());
    a.mov(reg::edx, u32::from(most.max(1)))?;
    // So that the copy begins behind the length.
    a.add(VALUE, i32::from(PIECE))?;
    if let Some(top) = environment.variables.interrupt_stack {
        a.mov(reg::rax, qword_ptr(top).gs())?;
        a.sub(reg::rax, reg::rdi)?;
        a.cmp(reg::rax, INTERRUPT_STACK_LEN as i32 - WORD)?;
        a.ja(whole)?;
        a.add(reg::rax, WORD)?;
        a.cmp(reg::rax, reg::rdx)?;
        a.jae(whole)?;
        a.sub(reg::rdx, reg::rax)?;
        a.push(reg::rdx)?;
        a.mov(reg::edx, reg::eax)?;
        a.push(reg::rdi)?;
        a.call(routines.copy)?;
        a.pop(reg::rdi)?;
        // Neither instruction before changes the flags.
        a.jb(partial)?;
        first_piece(a, routines)?;
        a.mov(reg::rdi, qword_ptr(TO - WORD))?;
        a.pop(reg::rdx)?;
        a.push(TO)?;
        a.push(reg::rdi)?;
        a.call(routines.more)?;
        a.pop(reg::rdi)?;
        a.pop(reg::rsi)?;
        lead_back(a, routines)?;
        a.jmp(out)?;
        a.set_label(&mut partial)?;
        a.pop(reg::rdx)?;
        a.jmp(copied)?;
    }
    a.set_label(&mut whole)?;
    a.push(reg::rdi)?;
    a.call(routines.copy)?;
    a.pop(reg::rdi)?;
    a.set_label(&mut copied)?;
    // Also if not all bytes could be copied.
    first_piece(a, routines)?;
    a.set_label(&mut out)?;
    a.sub(VALUE, i32::from(PIECE))
}

/// Ends the first piece: RDI has led to it, and [`TO`] is behind its copy.
fn first_piece(a: &mut CodeAssembler, routines: &Routines) -> Result<(), IcedError> {
    a.lea(reg::rsi, qword_ptr(VALUE + WORD))?;
    a.mov(reg::rax, TO)?;
    a.sub(reg::rax, reg::rsi)?;
    a.mov(qword_ptr(VALUE), reg::rax)?;
    lead_back(a, routines)
}

/// Puts return addresses back in the copy from RSI to [`TO`] of what RDI leads to.
fn lead_back(a: &mut CodeAssembler, routines: &Routines) -> Result<(), IcedError> {
    routines
        .lead_back()
        .map_or(Ok(()), |routine| a.call(routine))
}
