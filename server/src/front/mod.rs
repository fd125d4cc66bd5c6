//! The process that clients talk to. It has no guest.
//!
//! Each VM is a process of its own ([`process`]), which serves its calls on a socket that only this process has. A call
//! that names a VM is passed on to the VM's process, message by message, undecoded ([`relay`]). Calls about VMs as such
//! are answered here ([`calls`]). If a VM's process dies, it takes its guest with it, and nothing else. A call that its
//! client cancels is dropped ([`cancellation`]).
//!
//! Calls and connections are counted on their way ([`measure`], [`counters`]). These counts and those of the VMs can be
//! read by HTTP on separate addresses ([`watch`]), or are sent to a receiver, with the log ([`telemetry`]).

mod address;
mod addressed;
mod admission;
mod bind;
mod calls;
mod cancellation;
mod connection;
mod counters;
mod deadline;
mod declared;
mod drain;
mod host;
mod images;
mod measure;
mod options;
mod process;
mod raw;
mod relay;
mod request_size;
mod sent;
mod serve;
mod telemetry;
mod tls;
mod unix_socket;
mod vms;
mod watch;

pub use address::{ListenAddress, NoAddress};
pub use bind::BindError;
pub use connection::Peer;
pub use options::{METRICS_PROBES, ServeOptions};
pub use process::VmProgram;
pub use sent::Signal;
pub use serve::{ServeError, Server};
pub use telemetry::{TelemetryError, TelemetryOptions};
pub use tls::{TlsError, TlsFiles};
