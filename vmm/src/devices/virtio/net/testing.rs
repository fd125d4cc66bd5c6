//! Networks for tests.

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
};

use super::{Mac, NetBackend, NetDevice, Network, tap::Tap};
use crate::devices::virtio::rate::RateLimit;

/// The guest's address.
pub(crate) const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);
/// The interface's MTU.
pub(crate) const MTU: u16 = 9000;

/// A device whose tap interface is a socket: what the other end sends is a packet for the guest, with its header, and
/// what the guest sends is a packet there.
pub(crate) fn on_wire(socket: UnixDatagram) -> NetDevice {
    on_limited_wire(socket, RateLimit::default())
}

/// As [`on_wire`], with a limit.
pub(crate) fn on_limited_wire(socket: UnixDatagram, limit: RateLimit) -> NetDevice {
    socket.set_nonblocking(true).unwrap();
    let tap = Tap::of(File::from(OwnedFd::from(socket)), Some(MTU));
    NetDevice::new(Box::new(tap), &wanted(limit)).unwrap()
}

/// A network whose back end isn't opened.
pub(crate) fn wanted(limit: RateLimit) -> Network {
    Network {
        backend: NetBackend::Passt(None),
        mac: Some(MAC),
        limit,
    }
}
