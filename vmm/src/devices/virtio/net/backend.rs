//! The host's side of a network.

use std::os::fd::RawFd;

use thiserror::Error;
use vmm_sys_util::epoll::EventSet;

/// The network is gone for good. The text says why.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct Lost(pub(super) String);

/// Where frames go to and come from. Nothing here blocks. A packet is a header of [`HEADER_LEN`](super::HEADER_LEN)
/// bytes and a frame of [`MIN_FRAME`](super::MIN_FRAME) to [`MAX_FRAME`](super::MAX_FRAME).
pub(super) trait Backend: Send {
    /// The file to watch for events, each of which is told once (`EPOLLET`).
    fn file(&self) -> RawFd;

    /// The feature bits that stand for work that it takes over, or leaves to the guest.
    fn offloads(&self) -> u64 {
        0
    }

    /// The most bytes of a frame behind the Ethernet header, if that is known.
    fn mtu(&self) -> Option<u16> {
        None
    }

    /// Takes in that the driver has accepted `features`: what comes from now on leaves no other work to it.
    fn start(&mut self, features: u64) {
        let _ = features;
    }

    /// What is not yet sent may be forgotten: the driver doesn't wait for it any more.
    fn reset(&mut self) {}

    /// Handles an event of the file's.
    ///
    /// # Errors
    /// The event means that the network is gone.
    fn check(&mut self, events: EventSet) -> Result<(), Lost> {
        let _ = events;
        Ok(())
    }

    /// The next packet, put into `packet`, and how many bytes it has. None: there is none before the file's next
    /// event.
    ///
    /// # Errors
    /// The network is gone.
    fn receive(&mut self, packet: &mut [u8]) -> Result<Option<usize>, Lost>;

    /// Returns true if it takes a packet now. If not, the file has an event when it does.
    ///
    /// # Errors
    /// The network is gone.
    fn can_send(&mut self) -> Result<bool, Lost>;

    /// Sends a packet, or keeps it until it can be sent. To be called only after [`can_send`](Self::can_send) has
    /// returned true. A packet that the network doesn't take is dropped.
    ///
    /// # Errors
    /// The network is gone.
    fn send(&mut self, packet: &[u8]) -> Result<(), Lost>;
}
