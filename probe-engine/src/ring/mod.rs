//! Rings: how records get from the guest to the host without an exit.
//!
//! Each vCPU has a ring of its own, and only code that runs on that vCPU reserves space in it. A record counts when
//! its header is written, its last word. The host reads the whole records, clears them, and gives the space back. All
//! of it is memory of the guest's: what the host has to rely on it keeps for itself, and what it reads may be
//! anything.

mod counts;
pub mod layout;
pub(crate) mod memory;
mod reader;
mod record;
mod run;
mod shape;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod tests;

pub use reader::{Rings, RingsRead, Unfinished, VcpuMemory};
pub use record::{Record, Returned};
pub use run::RecordHeader;
pub use shape::Shape;
