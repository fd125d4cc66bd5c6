//! Guest memory.

use std::sync::Arc;

use thiserror::Error;
use vm_memory::{
    Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
};

use crate::layout;

/// Bytes in a MiB.
const MIB: u64 = 1 << 20;

/// Memory of one guest, shared by all who hold it.
///
/// It is mapped without being reserved or touched: the host gives pages as the
/// guest uses them.
#[derive(Clone, Debug)]
pub struct GuestRam {
    map: Arc<GuestMemoryMmap>,
}

/// Why guest memory can't be had.
#[derive(Debug, Error)]
pub enum RamError {
    /// The host did not map so much memory.
    #[error(
        "the host has no room for {mib} MiB of guest memory ({cause}); ask for less, or raise the \
         limit on address space (`ulimit -v`)"
    )]
    Map {
        /// What was asked for.
        mib: u64,
        /// The host's own words.
        cause: String,
    },
}

/// An access to guest physical addresses where there is no memory.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no guest memory at {at:#x}, {len} bytes")]
pub struct OutsideRam {
    /// First address of the access.
    pub at: u64,
    /// Its length in bytes.
    pub len: usize,
}

impl GuestRam {
    /// Maps `mib` MiB of guest memory: below the device hole as much as fits,
    /// the rest from 4 GiB on.
    pub(crate) fn new(mib: u64) -> Result<Self, RamError> {
        let error = |cause: String| RamError::Map { mib, cause };
        let bytes = mib
            .checked_mul(MIB)
            .ok_or_else(|| error("the size overflows".into()))?;
        let low = bytes.min(layout::DEVICE_HOLE);
        let mut ranges = vec![(GuestAddress(0), low as usize)];
        if bytes > low {
            ranges.push((
                GuestAddress(layout::DEVICE_HOLE_END),
                (bytes - low) as usize,
            ));
        }
        let map = GuestMemoryMmap::from_ranges(&ranges).map_err(|e| error(e.to_string()))?;
        Ok(Self { map: Arc::new(map) })
    }

    /// Reads guest physical memory.
    ///
    /// # Errors
    /// When a part of the range has no memory behind it.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), OutsideRam> {
        let len = into.len();
        self.map
            .read_slice(into, GuestAddress(at))
            .map_err(|_| OutsideRam { at, len })
    }

    /// Writes guest physical memory. An aligned write of 1, 2, 4 or 8 bytes is
    /// seen by the guest whole or not at all.
    ///
    /// # Errors
    /// When a part of the range has no memory behind it; then nothing is written.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), OutsideRam> {
        let outside = OutsideRam {
            at,
            len: from.len(),
        };
        if !self.map.check_range(GuestAddress(at), from.len()) {
            return Err(outside);
        }
        self.map
            .write_slice(from, GuestAddress(at))
            .map_err(|_| outside)
    }

    /// Guest physical ranges with memory behind them, as (first, bytes).
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        self.map
            .iter()
            .map(|r| (r.start_addr().raw_value(), r.len()))
            .collect()
    }

    /// End of the memory below the device hole.
    pub(crate) fn low_end(&self) -> u64 {
        self.ranges().first().map_or(0, |(start, len)| start + len)
    }

    /// The mapping itself, for loaders and KVM.
    pub(crate) fn map(&self) -> &GuestMemoryMmap {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_the_device_hole_goes_on_at_4_gib() {
        let ram = GuestRam::new(5 * 1024).unwrap();
        assert_eq!(ram.ranges(), [(0, 3 << 30), (4 << 30, 2 << 30)]);
        assert_eq!(ram.low_end(), 3 << 30);
        ram.write((6 << 30) - 4, &[1, 2, 3, 4]).unwrap();
        assert_eq!(
            ram.write((6 << 30) - 3, &[0; 4]),
            Err(OutsideRam {
                at: (6 << 30) - 3,
                len: 4
            })
        );
        let mut back = [0; 4];
        ram.read((6 << 30) - 4, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4]);
    }

    #[test]
    fn the_device_hole_is_not_memory() {
        let ram = GuestRam::new(5 * 1024).unwrap();
        assert!(
            ram.read(u64::from(layout::LOCAL_APIC), &mut [0; 8])
                .is_err()
        );
        assert!(ram.read((3 << 30) - 4, &mut [0; 8]).is_err());
    }

    #[test]
    fn a_size_that_no_host_has_is_an_error() {
        assert!(matches!(
            GuestRam::new(u64::MAX / MIB),
            Err(RamError::Map { .. })
        ));
        assert!(matches!(GuestRam::new(u64::MAX), Err(RamError::Map { .. })));
    }
}
