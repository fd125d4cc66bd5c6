//! The vmprobe server: joins the monitor (`vmm`) to the probe engine (`probe-engine`), VM by VM, and
//! offers both as gRPC services.
//!
//! [`Server::bind`] takes an address, [`Server::serve`] answers calls until it is told to end, and
//! leaves no guest running. The binary `vmprobed` adds arguments and signals.

mod access;
mod answer_body;
mod blocking;
mod call_layer;
mod console;
mod convert;
mod core_file;
mod described;
pub mod doctor;
mod fanout;
mod files;
mod front;
mod held;
mod images;
mod limits;
mod log;
mod machine;
mod one_vm;
mod page;
mod refusal;
mod resumable;
mod services;
mod settings;
mod status;
pub mod vm_process;

/// The events' way to clients in one process, for measurements.
#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::convert::event;
    pub use crate::fanout::{Fanout, Subscription};
    pub use crate::one_vm::Publishers;
}

pub use files::Folders;
pub use front::{
    BindError, ListenAddress, METRICS_PROBES, NoAddress, ServeError, ServeOptions, Server, Signal,
    TelemetryError, TelemetryOptions, TlsError, TlsFiles, VmProgram,
};
pub use images::OpenError;
pub use limits::Limits;
pub use log::{Copies, LogFormat, LogOptions, Records};
pub use settings::Settings;
