//! The bus that finds the device behind an I/O port or an address that is no memory.

use std::sync::Arc;

use thiserror::Error;
use vm_device::{
    DeviceMmio, DevicePio,
    bus::{MmioAddress, MmioRange, PioAddress, PioAddressOffset, PioRange},
    device_manager::{IoManager, MmioManager, PioManager},
};

/// Why a device can't be attached.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BusError {
    /// Another device has some of the ports, or there are no such ports.
    #[error("ports {first:#x} to {last:#x} can't be given to a device: a bug of the monitor")]
    Ports {
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
    },
    /// Another device has some of the addresses, or there are no such addresses.
    #[error(
        "{len:#x} addresses from {start:#x} on can't be given to a device: a bug of the monitor"
    )]
    Memory {
        /// The first address.
        start: u64,
        /// How many.
        len: u64,
    },
}

/// The devices of a guest by the ports and addresses where they are.
///
/// A port or an address without a device behaves as on a PC's empty bus: reads give all ones, writes
/// are dropped. Either is logged at the level `trace`.
#[derive(Default)]
pub(crate) struct Bus {
    io: IoManager,
}

impl Bus {
    /// Attaches `device` to `count` ports from `first` on.
    ///
    /// # Errors
    /// See [`BusError`].
    pub(crate) fn attach_ports(
        &mut self,
        first: u16,
        count: u16,
        device: Arc<dyn DevicePio + Send + Sync>,
    ) -> Result<(), BusError> {
        let last = first.saturating_add(count.saturating_sub(1));
        PioRange::new(PioAddress(first), count)
            .and_then(|range| self.io.register_pio(range, device))
            .map_err(|_| BusError::Ports { first, last })
    }

    /// Attaches `device` to `len` addresses from `start` on.
    ///
    /// # Errors
    /// See [`BusError`].
    pub(crate) fn attach_memory(
        &mut self,
        start: u64,
        len: u64,
        device: Arc<dyn DeviceMmio + Send + Sync>,
    ) -> Result<(), BusError> {
        MmioRange::new(MmioAddress(start), len)
            .and_then(|range| self.io.register_mmio(range, device))
            .map_err(|_| BusError::Memory { start, len })
    }

    /// Does a guest's `in`: fills `data`, one access of `data.len()` bytes or, by a string
    /// instruction, several of fewer bytes.
    pub(crate) fn port_read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        if let Some((device, base, offset)) = self.at_port(port) {
            device.pio_read(base, offset, data);
        } else {
            let bytes = data.len();
            tracing::trace!(bytes, "read of port {port:#x}, where no device is");
        }
    }

    /// Does a guest's `out`, with `data` as in [`port_read`](Self::port_read).
    pub(crate) fn port_write(&self, port: u16, data: &[u8]) {
        if let Some((device, base, offset)) = self.at_port(port) {
            device.pio_write(base, offset, data);
        } else {
            tracing::trace!(?data, "write to port {port:#x}, where no device is");
        }
    }

    /// The device at `port`, its first port, and the offset of `port` from there.
    ///
    /// `IoManager::pio_read` and `pio_write` want `data` to fit into the device's ports. The accesses
    /// of a string instruction are many bytes for one port.
    fn at_port(&self, port: u16) -> Option<(&dyn DevicePio, PioAddress, PioAddressOffset)> {
        let (range, device) = self.io.pio_device(PioAddress(port))?;
        Some((&**device, range.base(), PioAddress(port) - range.base()))
    }

    /// Does a guest's read of an address that is no memory.
    pub(crate) fn mmio_read(&self, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        if self.io.mmio_read(MmioAddress(address), data).is_err() {
            let bytes = data.len();
            tracing::trace!(bytes, "read of address {address:#x}, where no device is");
        }
    }

    /// Does a guest's write to an address that is no memory.
    pub(crate) fn mmio_write(&self, address: u64, data: &[u8]) {
        if self.io.mmio_write(MmioAddress(address), data).is_err() {
            tracing::trace!(?data, "write to address {address:#x}, where no device is");
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// A device of some ports: reads give the offset once, writes are noted.
    #[derive(Default)]
    struct Noting {
        written: Mutex<Vec<(u16, Vec<u8>)>>,
    }

    impl DevicePio for Noting {
        fn pio_read(&self, _: PioAddress, offset: PioAddressOffset, data: &mut [u8]) {
            data[0] = offset as u8;
        }

        fn pio_write(&self, _: PioAddress, offset: PioAddressOffset, data: &[u8]) {
            self.written.lock().push((offset, data.to_vec()));
        }
    }

    fn bus() -> (Bus, Arc<Noting>) {
        let (mut bus, device) = (Bus::default(), Arc::new(Noting::default()));
        bus.attach_ports(0x3f8, 8, Arc::clone(&device) as _)
            .unwrap();
        (bus, device)
    }

    fn read(bus: &Bus, port: u16, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        bus.port_read(port, &mut data);
        data
    }

    #[test]
    fn a_device_gets_the_accesses_of_its_ports_and_no_others() {
        let (bus, device) = bus();
        assert_eq!(read(&bus, 0x3f8, 1), [0]);
        assert_eq!(read(&bus, 0x3ff, 1), [7]);
        for outside in [0x3f7, 0x400] {
            assert_eq!(read(&bus, outside, 1), [0xff], "{outside:#x}");
            bus.port_write(outside, &[1]);
        }
        bus.port_write(0x3f9, &[2]);
        assert_eq!(*device.written.lock(), [(1, vec![2])]);
    }

    #[test]
    fn an_access_of_more_bytes_than_a_device_has_ports_is_the_device_s() {
        let (bus, device) = bus();
        assert_eq!(read(&bus, 0x3ff, 4), [7, 0xff, 0xff, 0xff]);
        bus.port_write(0x3f8, &[b'x'; 4096]);
        assert_eq!(*device.written.lock(), [(0, vec![b'x'; 4096])]);
    }

    #[test]
    fn where_no_device_is_reads_give_all_ones_and_writes_are_dropped() {
        let bus = Bus::default();
        for port in [0, 0x80, u16::MAX] {
            bus.port_write(port, &[1, 2, 3, 4]);
            assert_eq!(read(&bus, port, 4), [0xff; 4]);
        }
        for address in [0, 0xfee0_0000, u64::MAX] {
            let mut data = [0; 8];
            bus.mmio_write(address, &data);
            bus.mmio_read(address, &mut data);
            assert_eq!(data, [0xff; 8]);
        }
    }

    #[test]
    fn ports_that_another_device_has_are_refused() {
        let (mut bus, device) = bus();
        let refused = bus.attach_ports(0x3ff, 2, Arc::clone(&device) as _);
        let overlap = BusError::Ports {
            first: 0x3ff,
            last: 0x400,
        };
        assert_eq!(refused, Err(overlap));
        assert!(
            bus.attach_ports(u16::MAX, 2, Arc::clone(&device) as _)
                .is_err()
        );
        bus.attach_ports(0x400, 2, device).unwrap();
    }
}
