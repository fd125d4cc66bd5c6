//! What the arguments of a probe mean in a kernel.
//!
//! [`compile`] takes an argument as its text says it ([`vmprobe_spec::argument`]), and finds by the function's calling
//! convention, the kernel's symbols and its types which values a hit takes ([`probe_engine::value`]). [`Format`] turns
//! the values that were taken into a value of the protocol.
//!
//! The rules are those of the kernel's own `kprobe_events` (`Documentation/trace/kprobetrace.rst`,
//! `kernel/trace/trace_probe.c` of Linux 6.12). What differs:
//!
//! | here | there |
//! | --- | --- |
//! | `%di:string` and `name=$arg2:string` are the text that the register points to | refused |
//! | a constant of an enum is shown by its name | by its number |
//! | a member that is a struct, a union or an array is shown as C writes it | refused, or its first 8 bytes |
//! | an array of characters is shown as text, without `:string` | its first 8 bytes |
//! | a symbol that isn't unique is refused | the first one is taken |
//! | a text of more than 256 bytes is cut there | at 4096 bytes at the latest |
#![forbid(unsafe_code)]

mod compile;
mod error;
mod filter;
mod format;
mod known;
#[cfg(test)]
mod tests;

pub use compile::{Compiled, STRING_MAX, compile};
pub use error::{Cause, CompileError};
pub use filter::{FilterCause, FilterError, compile_filter};
pub use format::Format;
pub use known::{Function, Known, Place};
