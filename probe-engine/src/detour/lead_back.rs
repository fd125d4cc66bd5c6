//! Return addresses in a copy of the stack: where ours stand in the places of others, those are put back.
//!
//! The calls that return probes follow have the trampoline's address for their return address. What was there before is
//! in the table of calls only until they return, so the host comes too late for it. The calls on a task's stack are its
//! own: no other task ends them meanwhile. A call that the trampoline has begun to end has in that place what the
//! trampoline's first instruction has pushed.

use iced_x86::IcedError;
use iced_x86::code_asm::{AsmRegister64, CodeAssembler, CodeLabel, qword_ptr, registers as reg};

use super::call_table::{SLOT, TABLE, above, each_key, key, to_bucket, to_call};
use super::environment::Following;
use crate::calls::layout::{ORIGIN, PUSHED};

/// Bytes of a return address.
const WORD: i32 = 8;
/// Bytes from RIP to RSP in what an interrupt pushes (SDM vol. 3A, 6.14.2).
const RIP_TO_RSP: i32 = 24;

/// The routine that puts return addresses back.
pub(super) struct LeadBack {
    label: CodeLabel,
    following: Following,
}

impl LeadBack {
    pub(super) fn new(a: &mut CodeAssembler, following: Following) -> Self {
        Self {
            label: a.create_label(),
            following,
        }
    }

    pub(super) fn label(&self) -> CodeLabel {
        self.label
    }

    /// Writes the routine. The copy is from RSI to `end`; RDI is the address of what it is a copy of. Uses RAX, RCX,
    /// RDX, RSI, RDI, R8 and R10; `end` and `kept` stay.
    pub(super) fn write(
        mut self,
        a: &mut CodeAssembler,
        end: AsmRegister64,
        kept: AsmRegister64,
    ) -> Result<(), IcedError> {
        let (word, ours, away, level) = (reg::rsi, reg::rdi, reg::rdx, reg::r8d);
        let [mut next, mut mine, mut found, mut skip, mut out, mut search] =
            std::array::from_fn(|_| a.create_label());
        a.set_label(&mut self.label)?;
        a.mov(away, reg::rdi)?;
        a.sub(away, word)?;
        a.mov(ours, self.following.trampoline.0)?;
        a.set_label(&mut next)?;
        a.lea(reg::rax, qword_ptr(word + WORD))?;
        a.cmp(reg::rax, end)?;
        a.ja(out)?;
        a.mov(reg::rax, qword_ptr(word))?;
        a.sub(reg::rax, ours)?;
        a.je(mine)?;
        a.cmp(reg::rax, PUSHED as i32)?;
        a.jne(skip)?;
        a.set_label(&mut mine)?;

        for stays in [kept, end] {
            a.push(stays)?;
        }
        a.lea(SLOT, qword_ptr(word + away))?;
        a.call(search)?;
        a.test(level, level)?;
        a.jne(found)?;
        // An interrupt may have come in between the function's `ret` and the trampoline. Then this is the RIP that it
        // has pushed, and what it has overwritten is right below the RSP that it has pushed.
        a.lea(reg::rax, qword_ptr(word + (RIP_TO_RSP + WORD)))?;
        a.cmp(reg::rax, qword_ptr(reg::rsp))?;
        a.ja(found)?;
        a.mov(SLOT, qword_ptr(word + RIP_TO_RSP))?;
        a.sub(SLOT, WORD)?;
        a.call(search)?;
        a.set_label(&mut found)?;
        for stays in [end, kept] {
            a.pop(stays)?;
        }
        a.mov(ours, self.following.trampoline.0)?;
        a.set_label(&mut skip)?;
        a.add(word, WORD)?;
        a.jmp(next)?;
        a.set_label(&mut out)?;
        a.ret()?;

        let call = reg::rdi;
        a.set_label(&mut search)?;
        a.mov(TABLE, self.following.table.0)?;
        to_bucket(a)?;
        a.xor(level, level)?;
        // Of several calls there, the one that began last has put the address there.
        each_key(a, |a, next| {
            a.cmp(key(), SLOT)?;
            a.jne(next)?;
            to_call(a, call)?;
            above(a, level, call, next)?;
            a.mov(reg::rax, qword_ptr(call + ORIGIN))?;
            a.mov(qword_ptr(word), reg::rax)
        })?;
        a.ret()
    }
}
