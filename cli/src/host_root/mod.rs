//! A guest whose root is a folder of the host's or a disk image, and which runs one command or the root's own system.
//!
//! [`release`] finds out which kernel it is, [`modules`] finds the drivers that it has as modules, and
//! [`initramfs`] packs them with `vmprobe-init`, PID 1, and its job. [`streams`] is the host's end of the command's
//! input and output.

mod error;
mod initramfs;
mod job;
mod modules;
mod release;
mod streams;

pub use error::RootError;
pub use initramfs::{Prepared, prepare};
pub use release::of as release_of;
pub use streams::{CommandInput, Outcome, Streams};
