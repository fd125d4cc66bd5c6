//! Between the protocol's types and those of the engine and the monitor.

mod event;
mod probe;
mod spec;
mod vm;

pub use event::{event, registers};
pub use probe::{probes, symbol};
pub use spec::{specs, too_many};
pub use vm::{ending, exits};
