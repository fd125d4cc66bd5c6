//! The vmprobe server: joins the monitor (`vmm`) to the probe engine (`probe-engine`), VM by VM, and
//! offers both as gRPC services.
//!
//! [`Server::bind`] takes an address, [`Server::serve`] answers calls until it is told to end, and
//! leaves no guest running. The binary `vmprobed` is this with arguments and signals.

mod admission;
mod blocking;
mod console;
mod convert;
mod core_file;
pub mod doctor;
mod fanout;
mod limits;
mod machine;
mod machines;
mod page;
mod serve;
mod services;
mod status;

/// The way of events to clients, for measurements.
#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::convert::event;
    pub use crate::fanout::{Fanout, Subscription};
    pub use crate::serve::Publishers;
}

pub use limits::Limits;
pub use serve::{BindError, ServeError, ServeOptions, Server};
