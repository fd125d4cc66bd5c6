//! The configuration space of a function: 256 bytes, of which the guest may write some bits.
//!
//! PCI Local Bus Specification 3.0, chapter 6.

/// Bytes of a configuration space.
const LEN: usize = 256;

/// Offsets of registers (figure 6-1).
const VENDOR_ID: usize = 0x00;
const DEVICE_ID: usize = 0x02;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const REVISION_ID: usize = 0x08;
const CLASS: usize = 0x09;
const BAR_0: usize = 0x10;
const SUBSYSTEM_VENDOR_ID: usize = 0x2c;
const SUBSYSTEM_ID: usize = 0x2e;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
/// Where capabilities begin, behind the header.
const FIRST_CAPABILITY: usize = 0x40;

/// Bits of the command register: the function answers at its memory, it may access memory itself, and
/// its interrupt line is off.
const MEMORY_SPACE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
const INTERRUPT_DISABLE: u16 = 1 << 10;
/// Bit of the status register: there is a list of capabilities.
const HAS_CAPABILITIES: u16 = 1 << 4;

/// What a function is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) revision: u8,
    /// Base class, sub-class and programming interface.
    pub(crate) class: [u8; 3],
    pub(crate) subsystem_vendor: u16,
    pub(crate) subsystem: u16,
}

/// The kind of a capability (appendix H).
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum CapabilityId {
    /// What the vendor defines. Virtio tells by these where its registers are.
    VendorSpecific = 0x09,
    /// Interrupts by message, with a table of them.
    MsiX = 0x11,
}

/// A configuration space.
#[derive(Debug)]
pub(crate) struct ConfigSpace {
    bytes: [u8; LEN],
    /// Bits that the guest may write.
    writable: [u8; LEN],
    /// Where the next capability goes, and the byte that will point to it.
    free: usize,
    link: usize,
}

impl ConfigSpace {
    /// A space without memory and capabilities.
    pub(crate) fn new(identity: &Identity) -> Self {
        let mut space = Self {
            bytes: [0; LEN],
            writable: [0; LEN],
            free: FIRST_CAPABILITY,
            link: CAPABILITIES,
        };
        let [base, sub, interface] = identity.class;
        space.put(VENDOR_ID, &identity.vendor.to_le_bytes());
        space.put(DEVICE_ID, &identity.device.to_le_bytes());
        space.put(REVISION_ID, &[identity.revision]);
        space.put(CLASS, &[interface, sub, base]);
        space.put(
            SUBSYSTEM_VENDOR_ID,
            &identity.subsystem_vendor.to_le_bytes(),
        );
        space.put(SUBSYSTEM_ID, &identity.subsystem.to_le_bytes());
        let command = MEMORY_SPACE | BUS_MASTER | INTERRUPT_DISABLE;
        space.allow(COMMAND, &command.to_le_bytes());
        // A scratch byte, in which a system keeps what it likes.
        space.allow(INTERRUPT_LINE, &[0xff]);
        space
    }

    /// Gives the function `len` bytes of memory, a power of two and at least 16, at `address` until the
    /// guest moves it (6.2.5.1; BAR 0, 32 bits, not prefetchable).
    pub(crate) fn set_memory(&mut self, address: u32, len: u32) {
        debug_assert!(len.is_power_of_two() && len >= 16 && address.is_multiple_of(len));
        self.put(BAR_0, &address.to_le_bytes());
        self.allow(BAR_0, &(!(len - 1)).to_le_bytes());
    }

    /// Where the function's memory is, while it answers there.
    pub(crate) fn memory(&self) -> Option<u64> {
        let is_on = self.u16_at(COMMAND) & MEMORY_SPACE != 0;
        is_on.then(|| u64::from(self.u32_at(BAR_0)))
    }

    /// Adds a capability. `body` is what follows its kind and the pointer to the next one; `writable` are
    /// the bits of it that the guest may write. Returns where it is.
    pub(crate) fn add_capability(
        &mut self,
        id: CapabilityId,
        body: &[u8],
        writable: &[u8],
    ) -> usize {
        let at = self.free;
        self.put(self.link, &[at as u8]);
        self.put(at, &[id as u8, 0]);
        self.put(at + 2, body);
        self.allow(at + 2, writable);
        self.put(STATUS, &HAS_CAPABILITIES.to_le_bytes());
        self.link = at + 1;
        self.free = (at + 2 + body.len()).next_multiple_of(4);
        at
    }

    /// Reads from `offset` on; all ones beyond the end.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) {
        for (byte, at) in data.iter_mut().zip(offset..) {
            *byte = self.bytes.get(at).copied().unwrap_or(0xff);
        }
    }

    /// Does a write of the guest's: bits that it may not write stay.
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) {
        for (value, at) in data.iter().zip(offset..) {
            if let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *byte = *byte & !mask | value & mask;
            }
        }
    }

    /// The 16 bits at `offset`.
    pub(crate) fn u16_at(&self, offset: usize) -> u16 {
        let mut bytes = [0; 2];
        self.read(offset, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// The 32 bits at `offset`.
    pub(crate) fn u32_at(&self, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        self.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Sets bytes, whether the guest may write them or not.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(&Identity {
            vendor: 0x1af4,
            device: 0x1042,
            revision: 1,
            class: [0x01, 0x02, 0x03],
            subsystem_vendor: 0x1af4,
            subsystem: 0x1100,
        })
    }

    #[test]
    fn the_header_tells_what_the_function_is() {
        let space = space();
        assert_eq!(space.u32_at(VENDOR_ID), 0x1042_1af4);
        assert_eq!(space.u32_at(REVISION_ID), 0x0102_0301);
        assert_eq!(space.u32_at(SUBSYSTEM_VENDOR_ID), 0x1100_1af4);
        assert_eq!(space.u16_at(STATUS), 0);
    }

    #[test]
    fn the_guest_learns_the_length_of_the_memory_and_moves_it() {
        let mut space = space();
        space.set_memory(0xc001_0000, 0x1_0000);
        assert_eq!(space.memory(), None);
        space.write(COMMAND, &MEMORY_SPACE.to_le_bytes());
        assert_eq!(space.memory(), Some(0xc001_0000));
        space.write(BAR_0, &[0xff; 4]);
        assert_eq!(space.u32_at(BAR_0), 0xffff_0000);
        space.write(BAR_0, &0xd234_5678u32.to_le_bytes());
        assert_eq!(space.memory(), Some(0xd234_0000));
    }

    #[test]
    fn capabilities_are_a_list_from_the_header_on() {
        let mut space = space();
        let first = space.add_capability(CapabilityId::VendorSpecific, &[16, 1, 2, 3, 4], &[]);
        let second = space.add_capability(CapabilityId::MsiX, &[0, 0], &[0, 0xc0]);
        assert_eq!(space.u16_at(STATUS), HAS_CAPABILITIES);
        assert_eq!(space.u16_at(CAPABILITIES) as usize & 0xff, first);
        assert_eq!(space.u16_at(first), (second as u16) << 8 | 0x09);
        assert_eq!(space.u16_at(second), 0x11);
        space.write(second, &[0xff; 4]);
        assert_eq!(space.u32_at(second), 0xc000_0011);
    }

    #[test]
    fn what_is_beyond_the_end_reads_as_ones_and_ignores_writes() {
        let mut space = space();
        let mut data = [0; 4];
        space.read(LEN - 2, &mut data);
        assert_eq!(data, [0, 0, 0xff, 0xff]);
        space.write(LEN - 1, &[1; 4]);
        space.read(usize::MAX - 4, &mut data);
        assert_eq!(data, [0xff; 4]);
    }
}
