//! A network device (5.1): Ethernet frames between the guest and a network of the host's.
//!
//! - [`wanted`] says what a network is and why there may be none.
//! - [`backend`] is what the device needs of the host's side. [`tap`] is a tap interface of the host's, and [`passt`]
//!   a process that speaks for the guest by sockets of its own; frames go to it over a [`stream`].
//! - [`device`] moves packets between the queues and the back end.
//!
//! A packet is a frame behind a header of 12 bytes (`struct virtio_net_hdr`, 5.1.6). The header says what the receiver
//! has yet to do about the frame: to finish a checksum, or to cut one long segment into many. A tap interface takes and
//! gives such headers, so long segments pass between guest and host as they are. Passt has none.

mod backend;
mod device;
mod passt;
mod stream;
mod tap;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wanted;

pub(crate) use device::NetDevice;
pub use wanted::{Mac, NetBackend, NetError, Network, NoMac};

/// Bytes of a packet's header (5.1.6: since version 1 the field `num_buffers` is always there).
const HEADER_LEN: usize = 12;
/// Fewest bytes of a frame: the two addresses and the type (IEEE 802.3, 3.1.1, without padding and check sequence).
const MIN_FRAME: usize = 14;
/// Most bytes of a frame (5.1.6.3.1: a packet with its header has 65562 bytes at most).
const MAX_FRAME: usize = 65_550;
/// Most bytes of a packet.
const MAX_PACKET: usize = HEADER_LEN + MAX_FRAME;

/// Feature bits (5.1.3). What one side of the queue must be able to finish, the other one may leave.
mod feature {
    /// The device finishes checksums.
    pub(super) const CSUM: u64 = 1 << 0;
    /// The driver finishes checksums.
    pub(super) const GUEST_CSUM: u64 = 1 << 1;
    pub(super) const MTU: u64 = 1 << 3;
    pub(super) const MAC: u64 = 1 << 5;
    /// The driver takes long segments of TCP over IPv4, over IPv6, and with ECN.
    pub(super) const GUEST_TSO4: u64 = 1 << 7;
    pub(super) const GUEST_TSO6: u64 = 1 << 8;
    pub(super) const GUEST_ECN: u64 = 1 << 9;
    /// The device takes them.
    pub(super) const HOST_TSO4: u64 = 1 << 11;
    pub(super) const HOST_TSO6: u64 = 1 << 12;
    pub(super) const HOST_ECN: u64 = 1 << 13;
    /// A packet may be in several of the driver's buffers.
    pub(super) const MRG_RXBUF: u64 = 1 << 15;
    /// The configuration says whether the link is up.
    pub(super) const STATUS: u64 = 1 << 16;
}
