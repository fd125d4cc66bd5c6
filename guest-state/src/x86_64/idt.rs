//! The interrupt descriptor table in 64-bit mode.
//!
//! Source: Intel SDM vol. 3A, 6.14.1 (gates) and 6.10 (the table's limit).

use crate::addr::GuestVirtAddr;

/// Bytes of a gate.
pub const GATE_LEN: usize = 16;

/// How a vCPU gets to the handler of an exception or interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateDescriptor {
    /// The handler's first instruction.
    pub handler: GuestVirtAddr,
    /// The handler's code segment.
    pub selector: u16,
    /// The number of its stack in the TSS; 0 for none.
    pub stack: u8,
    /// Bits 0 to 3: the type. 5 and 6: the least privileged level whose instructions may use the gate. 7:
    /// present.
    attributes: u8,
}

impl GateDescriptor {
    /// The address of a vector's gate in a table that begins at `base` and whose last byte is at `limit`
    /// from there; `None` beyond the limit.
    pub fn address(base: u64, limit: u16, vector: u8) -> Option<GuestVirtAddr> {
        let at = u64::from(vector) * GATE_LEN as u64;
        let last = at + GATE_LEN as u64 - 1;
        (last <= u64::from(limit)).then_some(GuestVirtAddr(base.wrapping_add(at)))
    }

    /// The gate that these bytes of the table encode.
    pub const fn from_bytes(bytes: [u8; GATE_LEN]) -> Self {
        let [
            o0,
            o1,
            s0,
            s1,
            stack,
            attributes,
            o2,
            o3,
            o4,
            o5,
            o6,
            o7,
            ..,
        ] = bytes;
        Self {
            handler: GuestVirtAddr(u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7])),
            selector: u16::from_le_bytes([s0, s1]),
            stack: stack & 7,
            attributes,
        }
    }

    /// Returns true if the gate may be used at all.
    pub const fn is_present(self) -> bool {
        self.attributes & 0x80 != 0
    }

    /// The least privileged level whose instructions may use it, 0 to 3.
    pub const fn privilege(self) -> u8 {
        self.attributes >> 5 & 3
    }

    /// Its type: 14 for an interrupt gate, 15 for a trap gate.
    pub const fn kind(self) -> u8 {
        self.attributes & 0xf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_read_from_its_bytes() {
        let gate = GateDescriptor::from_bytes([
            0x78, 0x56, 0x10, 0, 0xfb, 0xee, 0x34, 0x12, 0xff, 0xff, 0xee, 0xff, 0, 0, 0, 0,
        ]);
        assert_eq!(gate.handler, GuestVirtAddr(0xffee_ffff_1234_5678));
        assert_eq!((gate.selector, gate.stack), (0x10, 3));
        assert_eq!(
            (gate.is_present(), gate.privilege(), gate.kind()),
            (true, 3, 14)
        );
    }

    #[test]
    fn a_gate_beyond_the_limit_has_no_address() {
        let base = 0xffff_fe00_0000_0000;
        assert_eq!(
            GateDescriptor::address(base, 0x3f, 3),
            Some(GuestVirtAddr(base + 0x30))
        );
        assert_eq!(GateDescriptor::address(base, 0x3e, 3), None);
        assert_eq!(
            GateDescriptor::address(base, 0xfff, 255),
            Some(GuestVirtAddr(base + 0xff0))
        );
    }
}
