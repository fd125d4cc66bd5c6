//! What a virtio device is to the transport and to its worker.

use std::{io, os::fd::AsRawFd};

use event_manager::{EventOps, Events};
use vmm_sys_util::epoll::EventSet;

use super::{
    device_config::DeviceConfig,
    queue::{DeviceQueue, QueueError},
};
use crate::confinement::Role;

/// The kind of a device (5, "Device Types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum DeviceId {
    Network = 1,
    Block = 2,
    Console = 3,
    Entropy = 4,
    Vsock = 19,
    FileSystem = 26,
}

impl DeviceId {
    /// The PCI class: base class, sub-class and programming interface (PCI Code and ID Assignment 1.11).
    pub(crate) fn class(self) -> [u8; 3] {
        match self {
            // An Ethernet controller.
            Self::Network => [0x02, 0x00, 0x00],
            // A mass storage controller of no other kind.
            Self::Block => [0x01, 0x80, 0x00],
            // A communication controller of no other kind.
            Self::Console | Self::Vsock => [0x07, 0x80, 0x00],
            // A device that fits no class.
            Self::Entropy | Self::FileSystem => [0xff, 0x00, 0x00],
        }
    }

    /// What the thread of such a device is there for.
    pub(crate) fn role(self) -> Role {
        match self {
            Self::Network => Role::Network,
            Self::Block => Role::Block,
            Self::Entropy => Role::Entropy,
            Self::Console => Role::Console,
            Self::Vsock => Role::Vsock,
            Self::FileSystem => Role::FileSystem,
        }
    }
}

/// A device. It belongs to the transport until the driver starts it, and to its worker's thread until the
/// driver resets it.
pub(crate) trait VirtioDevice: Send {
    /// Its kind.
    fn id(&self) -> DeviceId;

    /// The feature bits of its kind that it offers. The transport adds its own.
    fn features(&self) -> u64 {
        0
    }

    /// Most elements of each of its queues, powers of two.
    fn queue_sizes(&self) -> &[u16];

    /// Its configuration, as the driver reads it.
    fn config(&self) -> DeviceConfig {
        DeviceConfig::default()
    }

    /// Starts the device, whose driver has accepted `features` and enabled `queues`. The device watches files
    /// of its own, if it has any, by `watch`, with [`OWN_EVENT`] in their data.
    ///
    /// # Errors
    /// The device isn't started.
    fn start(
        &mut self,
        features: u64,
        watch: &mut EventOps<'_>,
        queues: &[DeviceQueue],
    ) -> io::Result<()> {
        let _ = (features, watch, queues);
        Ok(())
    }

    /// Serves queue `index`, into which the driver has put something. Takes all there is.
    ///
    /// # Errors
    /// The queue is broken: the device needs a reset.
    fn queue_ready(&mut self, index: usize, queues: &mut [DeviceQueue]) -> Result<(), QueueError>;

    /// Serves a file that it watches, which is ready.
    ///
    /// # Errors
    /// A queue is broken: the device needs a reset.
    fn own_event(
        &mut self,
        event: Events,
        watch: &mut EventOps<'_>,
        queues: &mut [DeviceQueue],
    ) -> Result<(), QueueError> {
        let _ = (event, watch, queues);
        Ok(())
    }

    /// Takes in that the driver has reset the device. Requests under way are done or dropped when it returns.
    fn reset(&mut self) {}
}

/// Watches a file of the device's own, which is then told by [`VirtioDevice::own_event`] when it can be read.
///
/// # Errors
/// It can't be watched.
pub(crate) fn watch_own(watch: &mut EventOps<'_>, file: &impl AsRawFd) -> io::Result<()> {
    let events = Events::with_data(file, OWN_EVENT, EventSet::IN);
    watch.add(events).map_err(io::Error::other)
}

/// Bit of an event's data: it is for the device itself.
pub(crate) const OWN_EVENT: u32 = 1 << 31;
