//! A return probe's other part of a detour: a routine that takes the values of a return, which lie in memory, and
//! writes its record. The code that all calls return to calls it by the address in the call's place in the table
//! ([`AT_RETURN`](crate::calls::layout::AT_RETURN)), with all registers put aside.
//!
//! As long as such a call is under way its detour stays where it is (`Arena::reclaim`).

use iced_x86::code_asm::{CodeAssembler, CodeLabel};

use super::environment::Environment;
use super::error::DetourError;
use super::pointers::Routines;
use super::return_record;
use super::saved::Saved;
use super::values::{self, Frame, Moment};
use crate::value::Value;

/// Bytes that a call pushes.
const RETURN_ADDRESS: i32 = 8;

/// Writes the routine. It takes a call in [`values::CALL`] and its word in [`return_record::CALL_WORD`], and gives
/// back a record that only has to be made whole, in [`return_record::RECORD`]; or the carry flag, set, if the ring
/// is full. Besides those it keeps RBP and R12 to R15.
pub(super) fn write(
    a: &mut CodeAssembler,
    environment: &Environment,
    (values, routines): (&[Value], &Routines),
    mut label: CodeLabel,
) -> Result<(), DetourError> {
    let mut none = a.create_label();
    a.set_label(&mut label)?;
    // It is called by a pointer (SDM vol. 1, 18.3: indirect branch tracking).
    a.endbr64()?;
    let mut stack = Saved::all();
    stack.pushed(RETURN_ADDRESS);
    let frame = Frame::of(values, None);
    stack.make_room(a, frame.len_bytes())?;
    let taken = (values, &frame);
    values::take(a, environment, taken, (&stack, Moment::Return), routines)?;
    let mut full = return_record::write(a, environment, &stack, Some(&frame), none)?;
    stack.drop_room(a)?;
    a.clc()?;
    a.ret()?;
    full.check(a)?;
    a.set_label(&mut none)?;
    stack.drop_room(a)?;
    a.stc()?;
    Ok(a.ret()?)
}
