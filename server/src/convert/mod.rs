//! Between the protocol's types and those of the engine and the monitor.

mod event;
mod options;
mod probe;
mod spec;
mod vm;

pub use event::{event, registers};
pub use probe::{followed_call, is_settled, probes, symbol};
pub use spec::{specs, too_many};
pub use vm::{ending, exits, stops};
