//! What an argument is compiled with, and what all forms of values have in common.

use probe_engine::value::Value;
use vmprobe_spec::argument::Span;

use super::chain::Chain;
use crate::error::{Cause, CompileError};
use crate::format::{Format, Number, Style};
use crate::known::{Function, Known};

/// Most bytes of a string.
pub const STRING_MAX: u16 = 256;

/// What an argument is compiled with.
pub struct Compiler<'a> {
    pub function: &'a Function<'a>,
    pub known: &'a Known<'a>,
}

pub fn wrong(span: &Span, cause: Cause) -> CompileError {
    CompileError {
        span: span.clone(),
        cause,
    }
}

/// Takes a whole number of `size` bytes: the lowest ones of a word, or those in memory.
pub fn number(chain: Chain, style: Style, size: u8) -> (Vec<Value>, Format) {
    let number = Number {
        size,
        bits: None,
        style,
    };
    let values = vec![chain.take(size.into())];
    (values, Format::number(number, None))
}
