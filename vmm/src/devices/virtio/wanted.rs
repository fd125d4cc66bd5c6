//! What devices a guest is to have.

use super::{block::Disk, console::VirtioConsole, fs::Share, net::Network, vsock::Vsock};

/// Devices of a guest on its PCI bus, which is there if any of them is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// Its disks, in the order in which it sees them.
    pub disks: Vec<Disk>,
    /// Folders of the host's that it can mount.
    pub shares: Vec<Share>,
    /// Its network devices, in the order in which it sees them.
    pub networks: Vec<Network>,
    /// It gets random bytes of the host's.
    pub entropy: bool,
    /// Its sockets are connected to sockets of the host.
    pub vsock: Option<Vsock>,
    /// Its console is a virtio device beside the serial port.
    pub console: Option<VirtioConsole>,
}

impl Devices {
    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.disks.len()
            + self.shares.len()
            + self.networks.len()
            + usize::from(self.entropy)
            + usize::from(self.vsock.is_some())
            + usize::from(self.console.is_some())
    }
}
