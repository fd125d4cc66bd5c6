//! What clients talk to: one process, which has no guest.
//!
//! Each VM is a process of its own ([`process`]), which serves its calls on a socket that only this process has. A
//! call that names a VM is passed on to it, message by message as they are ([`relay`]); those about VMs as such are
//! answered here ([`calls`]). A VM's process that dies takes its guest with it, and nothing else.

mod address;
mod addressed;
mod admission;
mod calls;
mod connection;
mod host;
mod images;
mod process;
mod raw;
mod relay;
mod serve;
mod tls;
mod unix_socket;
mod vms;

pub use address::{ListenAddress, NoAddress};
pub use connection::Peer;
pub use process::VmProgram;
pub use serve::{BindError, ServeError, ServeOptions, Server};
pub use tls::{TlsError, TlsFiles};
