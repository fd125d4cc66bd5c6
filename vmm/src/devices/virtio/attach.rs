//! Which virtio devices a guest has.

use std::{io, sync::Arc};

use thiserror::Error;
use vm_memory::GuestMemoryMmap;

use super::{
    block::{Block, DiskError},
    console::ConsoleDevice,
    device::VirtioDevice,
    entropy::Entropy,
    fs::{FileSystemDevice, ShareError},
    net::{NetDevice, NetError},
    pci::{MEMORY_LEN, VirtioPci},
    vsock::{VsockDevice, VsockError},
    wanted::Devices,
};
use crate::{
    confinement::Confinement,
    devices::{console::Console, events::DeviceEvents, guest_end::GuestEnd, pci::PciFunction},
};

/// The virtio devices of a guest.
#[derive(Default)]
pub(crate) struct VirtioDevices(Vec<Arc<VirtioPci>>);

impl VirtioDevices {
    /// The devices as functions of the PCI bus.
    pub(crate) fn functions(&self) -> Vec<Arc<dyn PciFunction>> {
        self.0
            .iter()
            .map(|device| Arc::clone(device) as _)
            .collect()
    }

    /// Stops all devices, for good. What a driver was told is written is on the host's disk cache then.
    pub(crate) fn stop(&self) {
        for device in &self.0 {
            device.stop();
        }
    }
}

/// A device that can't be had.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// A file can't be a disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A folder can't be shared.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// A network can't be had.
    #[error(transparent)]
    Network(#[from] NetError),
    /// The socket of a socket device can't be made.
    #[error(transparent)]
    Vsock(#[from] VsockError),
    /// The host has no file for a console.
    #[error("the host has no file for the guest's console: {0}")]
    Console(io::Error),
}

impl DeviceError {
    /// The field of a VM's configuration that is to blame.
    pub(crate) fn field(&self) -> &'static str {
        match self {
            Self::Disk(_) => "devices.disks",
            Self::Share(_) => "devices.shares",
            Self::Network(_) => "devices.networks",
            Self::Vsock(error) => error.field(),
            Self::Console(_) => "devices.console",
        }
    }
}

/// What devices have at their other end.
pub(crate) struct Ends<'e> {
    /// The VM's console.
    pub(crate) console: &'e Arc<Console>,
    /// The guest's end, which a console can tell of.
    pub(crate) guest_end: &'e GuestEnd,
}

/// The devices that `wanted` names, opened: a guest's disks in their order, its shares, its networks, then the rest.
/// The guest sees them in this order.
///
/// # Errors
/// A disk, a share or a network can't be used, or a socket can't be made.
pub(crate) fn open(
    wanted: &Devices,
    ends: &Ends<'_>,
) -> Result<Vec<Box<dyn VirtioDevice>>, DeviceError> {
    let mut devices: Vec<Box<dyn VirtioDevice>> = Vec::new();
    for disk in &wanted.disks {
        devices.push(Box::new(Block::open(disk)?));
    }
    for (share, index) in wanted.shares.iter().zip(0..) {
        if wanted.shares[..index]
            .iter()
            .any(|other| other.tag == share.tag)
        {
            let tag = share.tag.clone();
            let why = "another share has it";
            return Err(ShareError::Tag { tag, why }.into());
        }
        devices.push(Box::new(FileSystemDevice::open(share)?));
    }
    for network in &wanted.networks {
        devices.push(Box::new(NetDevice::open(network)?));
    }
    if wanted.entropy {
        devices.push(Box::new(Entropy));
    }
    if let Some(vsock) = &wanted.vsock {
        devices.push(Box::new(VsockDevice::open(vsock)?));
    }
    if let Some(console) = wanted.console {
        let device = ConsoleDevice::new(console, ends.console, ends.guest_end);
        devices.push(Box::new(device.map_err(DeviceError::Console)?));
    }
    Ok(devices)
}

/// Puts devices on the bus, whose window of memory begins at `window`. Their threads are confined.
///
/// # Errors
/// The host or KVM has no more events.
pub(crate) fn attach(
    devices: Vec<Box<dyn VirtioDevice>>,
    window: u32,
    memory: &Arc<GuestMemoryMmap>,
    events: &Arc<dyn DeviceEvents>,
    confinement: &Confinement,
) -> io::Result<VirtioDevices> {
    let places = (window..).step_by(MEMORY_LEN as usize);
    let functions = devices.into_iter().zip(places).enumerate();
    let functions = functions.map(|(index, (device, address))| {
        let name = format!("virtio{index}-{:?}", device.id()).to_lowercase();
        let (memory, events) = (Arc::clone(memory), Arc::clone(events));
        let confinement = confinement.clone();
        VirtioPci::new(name, device, address, memory, events, confinement).map(Arc::new)
    });
    Ok(VirtioDevices(functions.collect::<io::Result<_>>()?))
}
