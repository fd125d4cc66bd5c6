//! Addresses and other numbers that mean something, as types of their own.

use std::fmt;

/// Defines a number with a meaning: its conversions and how it is written.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }

        impl From<$name> for $inner {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

/// Adds the arithmetic of addresses.
macro_rules! address {
    ($name:ident) => {
        impl $name {
            /// This address plus `bytes`; `None` past the end of the address space.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// This address plus `bytes`, going on at zero past the end of the address space.
            pub const fn wrapping_add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            /// How many bytes this address lies above `base`; `None` when it lies below.
            pub const fn offset_from(self, base: Self) -> Option<u64> {
                self.0.checked_sub(base.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// An address as the guest's code uses it, translated by the guest's page tables.
    GuestVirtAddr(u64), "{:#x}"
}
address!(GuestVirtAddr);

number! {
    /// An address in the guest's physical memory.
    GuestPhysAddr(u64), "{:#x}"
}
address!(GuestPhysAddr);

number! {
    /// A virtual processor, counted from 0 as the VMM does.
    VcpuId(u32), "{}"
}

number! {
    /// A reading of the guest's time stamp counter, in its ticks.
    Tsc(u64), "{}"
}

/// A stretch of guest physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhysRange {
    /// Its first address.
    pub start: GuestPhysAddr,
    /// Its length in bytes.
    pub len: u64,
}

impl PhysRange {
    /// The first address behind it, at most the last one of the address space.
    pub const fn end(self) -> GuestPhysAddr {
        GuestPhysAddr(self.start.0.saturating_add(self.len))
    }

    /// Returns true if an access of `len` bytes at `at` touches it.
    pub const fn overlaps(self, at: GuestPhysAddr, len: usize) -> bool {
        at.0 < self.end().0 && at.0.saturating_add(len as u64) > self.start.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_in_hex() {
        assert_eq!(
            GuestVirtAddr(0xffff_ffff_8100_0000).to_string(),
            "0xffffffff81000000"
        );
        assert_eq!(
            format!("{:016x}", GuestPhysAddr(0x1000)),
            "0000000000001000"
        );
        assert_eq!(VcpuId(7).to_string(), "7");
    }

    #[test]
    fn arithmetic_stops_or_wraps_at_the_end_of_the_address_space() {
        let last = GuestVirtAddr(u64::MAX);
        assert_eq!(last.checked_add(1), None);
        assert_eq!(last.wrapping_add(1), GuestVirtAddr(0));
        assert_eq!(GuestVirtAddr(0x10).checked_add(5), Some(0x15.into()));
    }

    #[test]
    fn an_offset_is_never_negative() {
        let (low, high) = (GuestVirtAddr(0x1000), GuestVirtAddr(0x1234));
        assert_eq!(high.offset_from(low), Some(0x234));
        assert_eq!(low.offset_from(high), None);
    }
}
