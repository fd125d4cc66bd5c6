//! A return probe's other part of a detour: a routine that takes the values of a return, which lie in memory, and
//! writes its record. The code that all calls return to calls it by the address in the call's place in the table
//! ([`AT_RETURN`](crate::calls::layout::AT_RETURN)), with all registers put aside.
//!
//! As long as such a call is under way its detour stays where it is (`Arena::reclaim`).

use iced_x86::code_asm::{CodeAssembler, CodeLabel};

use super::environment::Environment;
use super::error::DetourError;
use super::filter::{self, FilterCode};
use super::globs::Globs;
use super::pointers::Routines;
use super::purpose::Purpose;
use super::return_record::{self, RECORD};
use super::saved::Saved;
use super::values::{self, Moment, ValueLayout};
use crate::filter::Filter;
use crate::value::Value;

/// Bytes that a call pushes.
const RETURN_ADDRESS: i32 = 8;

/// What a routine takes, and for which returns.
pub(super) struct AtReturn<'a> {
    /// What is in the record.
    pub(super) values: &'a [Value],
    /// What a return must meet to leave a record.
    pub(super) filter: Option<&'a Filter>,
}

impl<'a> AtReturn<'a> {
    /// Returns what a purpose wants; `None` if the code that all calls return to can write the record by itself. A
    /// filter that there is no code for is left to the reader of the records.
    pub(super) fn of(
        purpose: &'a Purpose,
        environment: &Environment,
    ) -> Result<Option<Self>, DetourError> {
        let values = &*purpose.at_return;
        let filter = match purpose.filter_at_return.as_deref() {
            Some(filter) if filter::has_code(filter, environment, values)? => Some(filter),
            _ => None,
        };
        Ok((!values.is_empty() || filter.is_some()).then_some(Self { values, filter }))
    }
}

/// Writes the routine, and returns what is to be written behind all else. The routine takes a call in [`values::CALL`]
/// and its word in [`return_record::CALL_WORD`]. It gives back a record that only has to be made whole, in
/// [`return_record::RECORD`], or 0 there if the return doesn't meet the filter. If the ring is full it sets the carry
/// flag. Besides those it keeps RBP and R12 to R15.
pub(super) fn write(
    a: &mut CodeAssembler,
    environment: &Environment,
    (of, routines): (&AtReturn<'_>, &Routines),
    mut label: CodeLabel,
) -> Result<Option<Globs>, DetourError> {
    let [mut none, mut unmet] = std::array::from_fn(|_| a.create_label());
    a.set_label(&mut label)?;
    // It is called by a pointer (SDM vol. 1, 18.3: indirect branch tracking).
    a.endbr64()?;
    let mut stack = Saved::all();
    stack.pushed(RETURN_ADDRESS);
    let layout = ValueLayout::of(of.values, of.filter);
    stack.make_room(a, layout.len_bytes())?;
    let taken = (of.values, &layout);
    values::take(a, environment, taken, (&stack, Moment::Return), routines)?;
    let mut globs = None;
    if let Some(filter) = of.filter {
        let mut code = FilterCode {
            environment,
            layout: &layout,
            globs: Globs::new(a),
        };
        code.branch(a, filter, false, unmet)?;
        globs = Some(code.globs);
    }
    let mut full = return_record::write(a, environment, &stack, Some(&layout), none)?;
    stack.drop_room(a)?;
    a.clc()?;
    a.ret()?;
    if of.filter.is_some() {
        a.set_label(&mut unmet)?;
        stack.drop_room(a)?;
        // The carry flag is clear then.
        a.xor(RECORD, RECORD)?;
        a.ret()?;
    }
    full.check(a)?;
    a.set_label(&mut none)?;
    stack.drop_room(a)?;
    a.stc()?;
    a.ret()?;
    Ok(globs)
}
