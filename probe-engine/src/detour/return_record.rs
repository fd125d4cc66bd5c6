//! The record of a call's return. It is written with all registers put aside, by the code that all calls return to
//! or by a routine of the call's own detour.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister32, AsmRegister64, CodeAssembler, CodeLabel, qword_ptr, registers as reg,
};

use super::environment::Environment;
use super::fetch;
use super::pointers::VALUE;
use super::record;
use super::ring_space::RingSpace;
use super::saved::Saved;
use super::values::{CALL, Moment, ValueLayout};
use crate::calls::layout::{ENTRY, ENTRY_TSC, NUMBER, ORIGIN};
use crate::fetch::Fetches;
use crate::ring::layout;

/// Has the call's word.
pub(super) const CALL_WORD: AsmRegister32 = reg::r14d;
/// Has the record's address.
pub(super) const RECORD: AsmRegister64 = reg::rdi;
/// Has the distance from GS base to the vCPU's block.
const BLOCK: AsmRegister64 = reg::r8;

/// Writes the record of the return of the call in [`CALL`], without the byte that makes it whole. If there is no room
/// for it, execution goes on as [`RingSpace`] is told. Afterwards the record's address is in [`RECORD`]. With a
/// `layout` there are values on the stack, which end at [`VALUE`].
pub(super) fn write(
    a: &mut CodeAssembler,
    environment: &Environment,
    stack: &Saved,
    layout: Option<&ValueLayout>,
    done: CodeLabel,
) -> Result<RingSpace, IcedError> {
    let mut full = RingSpace::new(a, done, BLOCK);
    if let Some(layout) = layout {
        record::measure(a, layout)?;
    }
    a.mov(BLOCK, environment.block)?;
    let more = layout.map(|_| VALUE);
    full.reserve(a, RECORD, (layout::RETURN_WORDS * 8, more))?;
    record::address(a, environment, BLOCK, RECORD)?;
    a.mov(reg::ecx, CALL_WORD)?;
    a.and(reg::ecx, NUMBER as i32)?;
    let header = layout::return_header(0, layout::RETURN_WORDS as u8);
    a.mov(reg::rax, layout::open(header))?;
    a.or(reg::rax, reg::rcx)?;
    if layout.is_some() {
        record::lengthen(a)?;
    }
    a.mov(qword_ptr(RECORD), reg::rax)?;
    record::time(a)?;
    a.mov(qword_ptr(RECORD + layout::RECORD_TSC), reg::rax)?;
    record::task(
        a,
        environment,
        (RECORD, BLOCK),
        Some(layout::RETURN_CONTEXT),
    )?;
    let rsp = qword_ptr(reg::rsp + Moment::Return.rsp(stack));
    for (it, at) in Fetches::ALL.layout() {
        let to = qword_ptr(RECORD + (layout::RECORD_VALUES + at));
        fetch::write(a, it, stack, rsp, to)?;
    }
    let at_entry = Fetches::ALL.layout().map(|(_, at)| ENTRY + at);
    let of_call = [ORIGIN, ENTRY_TSC].into_iter().chain(at_entry);
    for (from, to) in of_call.zip((layout::RETURN_CALLER..).step_by(8)) {
        a.mov(reg::rax, qword_ptr(CALL + from))?;
        a.mov(qword_ptr(RECORD + to), reg::rax)?;
    }
    if layout.is_some() {
        record::copy_values(a, RECORD, layout::RETURN_WORDS * 8)?;
    }
    Ok(full)
}
