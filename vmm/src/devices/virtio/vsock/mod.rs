//! A socket device: connections between the guest's `AF_VSOCK` sockets and Unix sockets of the host (5.10).
//!
//! Which Unix socket stands for which port is the scheme of Firecracker and Cloud Hypervisor, so that tools
//! made for these work. With the device at `PATH`:
//!
//! - A process of the host that wants port P of the guest connects to `PATH`, writes `CONNECT P\n`, and gets
//!   `OK Q\n` when the guest has accepted, where Q is the port that it has on the host's side.
//! - A guest that connects to port P of the host (CID 2) gets to the Unix socket `PATH_P`. If no process
//!   listens there, its connection is reset.
//!
//! [`device`] moves packets between the queues and the [`multiplexer`], which knows the connections and the
//! sockets. A [`connection`] is one of them, with its flow control; it decides what becomes of it.
//!
//! The crate `virtio-vsock` isn't used: it takes a packet only in one or two buffers, but guests since
//! Linux 6.7 send some in more (`MSG_ZEROCOPY`), and a device may assume nothing of their number (2.7.4.1).

mod caller;
mod connection;
mod device;
mod host_socket;
mod multiplexer;
mod packet;
#[cfg(test)]
mod tests;

pub(crate) use device::VsockDevice;
pub use host_socket::{Vsock, VsockError};

/// The host's CID (`VMADDR_CID_HOST`, `include/uapi/linux/vm_sockets.h`).
const HOST_CID: u64 = 2;
/// The CIDs that a guest can have: those below are reserved, and the last one stands for any (5.10.4).
const GUEST_CIDS: std::ops::Range<u32> = 3..u32::MAX;
/// Most connections at a time. Each takes a file of the server's process, and at most [`BUFFER`] bytes.
const MAX_CONNECTIONS: usize = 1024;
/// Bytes that a guest may send over a connection beyond what the host's process has taken. All connections
/// together take 64 MiB at most.
const BUFFER: usize = 64 << 10;
