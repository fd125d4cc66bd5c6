//! vmprobe's events in the formats that other tools read.
//!
//! | ending | format | read by |
//! | --- | --- | --- |
//! | `.txt` | the text of the kernel's `trace` file | people, scripts for ftrace |
//! | `.json`, `.jsonl` | one JSON value a line, see `docs/trace-event.schema.json` | programs |
//! | `.perfetto-trace`, `.pftrace` | a protobuf trace | Perfetto's page and trace processor |
//! | `.dat` | trace-cmd's file, version 6 | `trace-cmd report`, KernelShark |
//! | `.folded` | `comm;outermost;innermost count` a line | flame graph tools |
//! | `.svg` | a flame graph | browsers |
//!
//! [`create`] makes the [`Writer`] that a file's name asks for. A [`Recorder`] makes a [`Record`] of each event, for
//! programs that bring events elsewhere. [`Histogram`] is a text about latencies.
//!
//! What a guest puts into an event is never trusted: no event makes a writer panic, and what a writer
//! remembers of the events is bounded. Each writer says what it does beyond its bounds.

#![forbid(unsafe_code)]

mod clock;
mod folded;
mod ftrace;
mod histogram;
mod json;
mod kinds;
mod names;
mod perfetto;
mod record;
mod spool;
mod symbols;
mod text;
mod trace_dat;
mod values;
mod writer;

#[cfg(test)]
mod samples;

pub use folded::{FlameGraph, Folded, Stacks};
pub use ftrace::{Ftrace, Header};
pub use histogram::{Histogram, Range};
pub use json::JsonLines;
pub use kinds::named_registers;
pub use perfetto::Perfetto;
pub use record::{Address, Fault, Record, Recorder, Return, Task, Value};
pub use symbols::{Place, Symbols};
pub use trace_dat::TraceDat;
pub use writer::{CreateError, Format, Guest, Writer, create};
