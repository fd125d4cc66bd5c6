//! The root of the bus: which function an access of the guest's is for.
//!
//! Configuration spaces are reached through two ports (PCI Local Bus Specification 3.0, 3.2.2.3.2).

use std::sync::Arc;

use parking_lot::Mutex;
use vm_device::{
    DeviceMmio, DevicePio,
    bus::{MmioAddress, MmioAddressOffset, PioAddress, PioAddressOffset},
};

use super::{
    MAX_FUNCTIONS,
    config_space::{ConfigSpace, Identity},
};

/// Bit of the address port: the data port reaches configuration spaces.
const CONFIG_ENABLED: u32 = 1 << 31;
/// A vendor and device that mean nothing but "a host bridge" here: those of Intel's i440FX, which every
/// system knows and none has to do anything for.
const HOST_BRIDGE: Identity = Identity {
    vendor: 0x8086,
    device: 0x1237,
    revision: 0,
    class: [0x06, 0x00, 0x00],
    subsystem_vendor: 0,
    subsystem: 0,
};

/// A function on the bus.
pub(crate) trait PciFunction: Send + Sync {
    /// Reads its configuration space from `offset` on.
    fn read_config(&self, offset: usize, data: &mut [u8]);

    /// Writes to its configuration space.
    fn write_config(&self, offset: usize, data: &[u8]);

    /// Where its memory is, while it answers there.
    fn memory(&self) -> Option<u64>;

    /// Bytes of its memory.
    fn memory_len(&self) -> u64;

    /// Reads its memory from `offset` on.
    fn read_memory(&self, offset: u64, data: &mut [u8]);

    /// Writes to its memory.
    fn write_memory(&self, offset: u64, data: &[u8]);
}

/// The bus: a host bridge in slot 0, one function in each slot from 1 on.
pub(crate) struct PciRoot {
    bridge: ConfigSpace,
    functions: Vec<Arc<dyn PciFunction>>,
    /// What the guest has written to the address port.
    address: Mutex<u32>,
    /// Where the window of the functions' memory begins.
    window: u64,
}

/// What a configuration address means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Location {
    bus: u8,
    slot: u8,
    function: u8,
    /// The register's offset, a multiple of 4.
    offset: u8,
}

impl Location {
    /// Returns None while configuration spaces aren't reached.
    fn of(address: u32) -> Option<Self> {
        let [register, device, bus, _] = address.to_le_bytes();
        (address & CONFIG_ENABLED != 0).then_some(Self {
            bus,
            slot: device >> 3,
            function: device & 0b111,
            offset: register & !0b11,
        })
    }
}

impl PciRoot {
    /// A bus with `functions`, at most [`MAX_FUNCTIONS`], whose memory is in the window from `window` on.
    pub(crate) fn new(functions: Vec<Arc<dyn PciFunction>>, window: u64) -> Arc<Self> {
        debug_assert!(functions.len() <= MAX_FUNCTIONS);
        Arc::new(Self {
            bridge: ConfigSpace::new(&HOST_BRIDGE),
            functions,
            address: Mutex::default(),
            window,
        })
    }

    fn function(&self, location: Location) -> Option<&dyn PciFunction> {
        let index = usize::from(location.slot).checked_sub(1)?;
        let is_here = location.bus == 0 && location.function == 0;
        let function = self.functions.get(index).filter(|_| is_here)?;
        Some(&**function)
    }

    fn read_config(&self, at: PioAddressOffset, data: &mut [u8]) {
        data.fill(0xff);
        let Some(location) = Location::of(*self.address.lock()) else {
            return;
        };
        let offset = usize::from(location.offset) + usize::from(at);
        if let Some(function) = self.function(location) {
            function.read_config(offset, data);
        } else if (location.bus, location.slot, location.function) == (0, 0, 0) {
            self.bridge.read(offset, data);
        }
    }

    fn write_config(&self, at: PioAddressOffset, data: &[u8]) {
        let Some(location) = Location::of(*self.address.lock()) else {
            return;
        };
        let offset = usize::from(location.offset) + usize::from(at);
        if let Some(function) = self.function(location) {
            function.write_config(offset, data);
        }
    }

    /// The function whose memory has all `len` bytes from `address` on, and the offset in it.
    fn at(&self, address: u64, len: usize) -> Option<(&dyn PciFunction, u64)> {
        self.functions.iter().find_map(|function| {
            let offset = address.checked_sub(function.memory()?)?;
            let end = offset.checked_add(len as u64)?;
            (end <= function.memory_len()).then_some((&**function, offset))
        })
    }
}

impl DeviceMmio for PciRoot {
    fn mmio_read(&self, base: MmioAddress, offset: MmioAddressOffset, data: &mut [u8]) {
        debug_assert_eq!(base.0, self.window);
        data.fill(0xff);
        if let Some((function, offset)) = self.at(base.0 + offset, data.len()) {
            function.read_memory(offset, data);
        }
    }

    fn mmio_write(&self, base: MmioAddress, offset: MmioAddressOffset, data: &[u8]) {
        debug_assert_eq!(base.0, self.window);
        if let Some((function, offset)) = self.at(base.0 + offset, data.len()) {
            function.write_memory(offset, data);
        }
    }
}

/// The port where the guest says which register the data port reaches. Only whole words are for it.
pub(crate) struct ConfigAddressPort(pub(crate) Arc<PciRoot>);

impl DevicePio for ConfigAddressPort {
    fn pio_read(&self, _: PioAddress, _: PioAddressOffset, data: &mut [u8]) {
        if data.len() == 4 {
            data.copy_from_slice(&self.0.address.lock().to_le_bytes());
        }
    }

    fn pio_write(&self, _: PioAddress, _: PioAddressOffset, data: &[u8]) {
        if let Ok(word) = data.try_into() {
            *self.0.address.lock() = u32::from_le_bytes(word);
        }
    }
}

/// The four ports of that register's bytes.
pub(crate) struct ConfigDataPort(pub(crate) Arc<PciRoot>);

impl DevicePio for ConfigDataPort {
    fn pio_read(&self, _: PioAddress, offset: PioAddressOffset, data: &mut [u8]) {
        self.0.read_config(offset, data);
    }

    fn pio_write(&self, _: PioAddress, offset: PioAddressOffset, data: &[u8]) {
        self.0.write_config(offset, data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 0xc000_0000;

    /// A function that notes writes and reads as its own number.
    struct Noting {
        number: u8,
        at: Mutex<Option<u64>>,
        written: Mutex<Vec<(u64, Vec<u8>)>>,
    }

    impl Noting {
        fn new(number: u8) -> Arc<Self> {
            Arc::new(Self {
                number,
                at: Mutex::new(Some(WINDOW + u64::from(number) * 0x1000)),
                written: Mutex::default(),
            })
        }
    }

    impl PciFunction for Noting {
        fn read_config(&self, _: usize, data: &mut [u8]) {
            data.fill(self.number);
        }

        fn write_config(&self, offset: usize, data: &[u8]) {
            self.written.lock().push((offset as u64, data.to_vec()));
        }

        fn memory(&self) -> Option<u64> {
            *self.at.lock()
        }

        fn memory_len(&self) -> u64 {
            0x1000
        }

        fn read_memory(&self, _: u64, data: &mut [u8]) {
            data.fill(self.number);
        }

        fn write_memory(&self, offset: u64, data: &[u8]) {
            self.written.lock().push((offset, data.to_vec()));
        }
    }

    fn root() -> (Arc<PciRoot>, [Arc<Noting>; 2]) {
        let functions = [Noting::new(1), Noting::new(2)];
        let shared = functions.iter().map(|f| Arc::clone(f) as _).collect();
        (PciRoot::new(shared, WINDOW), functions)
    }

    fn select(root: &Arc<PciRoot>, address: u32) {
        let port = ConfigAddressPort(Arc::clone(root));
        port.pio_write(PioAddress(0xcf8), 0, &address.to_le_bytes());
    }

    fn config(root: &Arc<PciRoot>, offset: u16) -> [u8; 2] {
        let mut data = [0; 2];
        ConfigDataPort(Arc::clone(root)).pio_read(PioAddress(0xcfc), offset, &mut data);
        data
    }

    #[test]
    fn the_data_port_reaches_what_the_address_port_names() {
        let (root, [_, second]) = root();
        for (address, expected) in [
            (0x8000_0000, [0x86, 0x80]),
            (0x8000_0800, [1, 1]),
            (0x8000_1000, [2, 2]),
            (0x8000_1800, [0xff, 0xff]),
            (0x8000_0900, [0xff, 0xff]),
            (0x8001_0800, [0xff, 0xff]),
            (0x0000_0800, [0xff, 0xff]),
        ] {
            select(&root, address);
            assert_eq!(config(&root, 0), expected, "{address:#x}");
        }
        select(&root, 0x8000_1044);
        ConfigDataPort(Arc::clone(&root)).pio_write(PioAddress(0xcfc), 2, &[7]);
        assert_eq!(*second.written.lock(), [(0x46, vec![7])]);
        let mut address = [0; 4];
        ConfigAddressPort(root).pio_read(PioAddress(0xcf8), 0, &mut address);
        assert_eq!(u32::from_le_bytes(address), 0x8000_1044);
    }

    #[test]
    fn memory_is_found_where_the_guest_has_moved_it() {
        let (root, [first, second]) = root();
        let read = |offset: u64, len: usize| {
            let mut data = vec![0; len];
            root.mmio_read(MmioAddress(WINDOW), offset, &mut data);
            data
        };
        assert_eq!(read(0x1ffe, 2), [1; 2]);
        assert_eq!(read(0x1fff, 2), [0xff; 2]);
        assert_eq!(read(0x2000, 8), [2; 8]);
        *second.at.lock() = Some(0);
        *first.at.lock() = None;
        assert_eq!(read(0x1000, 4), [0xff; 4]);
        assert_eq!(read(0x2000, 4), [0xff; 4]);
        *second.at.lock() = Some(WINDOW + 0x10_0000);
        root.mmio_write(MmioAddress(WINDOW), 0x10_0010, &[9; 4]);
        assert_eq!(*second.written.lock(), [(0x10, vec![9; 4])]);
    }
}
