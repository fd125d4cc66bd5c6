//! Properties that hold for any bytes that reach the engine, the readers of text, or devices.
//!
//! Each property is a function of bytes that panics if it doesn't hold. Here they are tried with
//! the corpus in `fuzz/corpus/` and with random bytes; `make fuzz` searches further.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a property that doesn't hold panics"
)]

mod decode;
mod devices;
mod emulate;
mod grammar;
mod input;
mod kernel_log;
mod relocate;
mod rings;
mod symbols;
mod types;

#[cfg(test)]
mod tests;

pub use decode::decode;
pub use devices::devices;
pub use emulate::emulate;
pub use grammar::{definitions_of as definitions, filters};
pub use kernel_log::kernel_log;
pub use relocate::relocate;
pub use rings::rings;
pub use symbols::symbols;
pub use types::types;
