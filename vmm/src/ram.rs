//! Guest memory.

use std::sync::Arc;

use thiserror::Error;
use vm_memory::{
    Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap,
};

use crate::layout;

/// Bytes in a MiB.
const MIB: u64 = 1 << 20;
/// Bytes of a page.
const PAGE: u64 = 0x1000;

/// Memory of one guest, shared by all who hold it: what the guest knows as its
/// own, and the arena.
///
/// It is mapped without being reserved or touched: the host gives pages as the
/// guest uses them.
#[derive(Clone, Debug)]
pub struct GuestRam {
    /// What the guest is told about.
    known: Arc<GuestMemoryMmap>,
    /// The same and the arena.
    all: Arc<GuestMemoryMmap>,
    arena: ArenaMemory,
}

/// Guest physical memory that the guest isn't told about: neither its memory map
/// (e820) nor its ACPI tables have it. Whoever knows where it is can map it into
/// the guest's virtual address space. It is zero at first and takes host memory
/// only where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaMemory {
    /// Two pages below 1 MiB, which a kernel maps but doesn't use, for page tables.
    pub tables: u64,
    /// What the guest can read and execute; its writes there come to nothing.
    pub code: Stretch,
    /// What the guest can read and write.
    pub data: Stretch,
}

/// A stretch of guest physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its first address, a multiple of 1 GiB.
    pub phys: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl ArenaMemory {
    /// The arena of a guest whose memory ends at `ram_end`: at least a page above
    /// it, and above the device hole.
    fn above(ram_end: u64) -> Option<Self> {
        let free = ram_end.max(layout::DEVICE_HOLE_END).checked_add(PAGE)?;
        let phys = free.checked_next_multiple_of(layout::ARENA_ALIGN)?;
        let code = Stretch {
            phys,
            len: layout::ARENA_CODE_LEN,
        };
        let data = Stretch {
            phys: code.phys.checked_add(code.len)?,
            len: layout::ARENA_DATA_LEN,
        };
        data.phys.checked_add(data.len)?;
        Some(Self {
            tables: layout::ARENA_TABLES,
            code,
            data,
        })
    }

    /// The first address after it.
    pub fn end(&self) -> u64 {
        self.data.phys + self.data.len
    }
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
    /// the rest from 4 GiB on. The arena comes above.
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
        let known = GuestMemoryMmap::from_ranges(&ranges).map_err(|e| error(e.to_string()))?;
        let ram_end = known.last_addr().raw_value() + 1;
        let arena =
            ArenaMemory::above(ram_end).ok_or_else(|| error("the size overflows".into()))?;
        let mut all = known.clone();
        for Stretch { phys, len } in [arena.code, arena.data] {
            let region = GuestRegionMmap::from_range(GuestAddress(phys), len as usize, None)
                .map_err(|e| error(e.to_string()))?;
            all = all
                .insert_region(Arc::new(region))
                .map_err(|e| error(e.to_string()))?;
        }
        Ok(Self {
            known: Arc::new(known),
            all: Arc::new(all),
            arena,
        })
    }

    /// Reads guest physical memory, the arena included.
    ///
    /// # Errors
    /// When a part of the range has no memory behind it.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), OutsideRam> {
        let len = into.len();
        self.all
            .read_slice(into, GuestAddress(at))
            .map_err(|_| OutsideRam { at, len })
    }

    /// Writes guest physical memory, the arena included. An aligned write of 1, 2, 4 or 8 bytes is
    /// seen by the guest whole or not at all.
    ///
    /// # Errors
    /// When a part of the range has no memory behind it; then nothing is written.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), OutsideRam> {
        let outside = OutsideRam {
            at,
            len: from.len(),
        };
        if !self.all.check_range(GuestAddress(at), from.len()) {
            return Err(outside);
        }
        self.all
            .write_slice(from, GuestAddress(at))
            .map_err(|_| outside)
    }

    /// Writes guest physical memory for the guest: what it could write itself, so all but
    /// the arena's code.
    ///
    /// # Errors
    /// As for [`write`](Self::write), and for code of the arena.
    pub fn write_as_guest(&self, at: u64, from: &[u8]) -> Result<(), OutsideRam> {
        let code = self.arena.code;
        let end = at.saturating_add(from.len() as u64);
        if at < code.phys + code.len && end > code.phys {
            return Err(OutsideRam {
                at,
                len: from.len(),
            });
        }
        self.write(at, from)
    }

    /// The memory that the guest isn't told about.
    pub(crate) fn arena(&self) -> ArenaMemory {
        self.arena
    }

    /// Guest physical ranges of the guest's own memory, as (first, bytes).
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        self.known
            .iter()
            .map(|r| (r.start_addr().raw_value(), r.len()))
            .collect()
    }

    /// End of the memory below the device hole.
    pub(crate) fn low_end(&self) -> u64 {
        self.ranges().first().map_or(0, |(start, len)| start + len)
    }

    /// The mapping of the guest's own memory, for loaders.
    pub(crate) fn known(&self) -> &GuestMemoryMmap {
        &self.known
    }

    /// The mapping of all memory, for KVM.
    pub(crate) fn all(&self) -> &GuestMemoryMmap {
        &self.all
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
    fn the_arena_is_memory_that_the_guest_is_not_told_about() {
        for (mib, phys) in [
            (64, 5 << 30),
            (3 << 10, 5 << 30),
            ((3 << 10) + 64, 5 << 30),
            // Memory that ends on a multiple of 1 GiB keeps its distance.
            (5 << 10, 7 << 30),
            (64 << 10, 66 << 30),
        ] {
            let ram = GuestRam::new(mib).unwrap();
            let arena = ram.arena();
            assert_eq!(arena.code.phys, phys, "{mib} MiB");
            assert_eq!(arena.data.phys, phys + arena.code.len);
            assert_eq!(
                ram.ranges().iter().map(|(_, len)| len).sum::<u64>(),
                mib * MIB
            );
            assert_eq!(ram.low_end(), (mib * MIB).min(3 << 30));
            for Stretch { phys, len } in [arena.code, arena.data] {
                ram.write(phys + len - 8, &[7; 8]).unwrap();
                let mut back = [0; 8];
                ram.read(phys + len - 8, &mut back).unwrap();
                assert_eq!(back, [7; 8]);
            }
            assert!(ram.write(arena.code.phys - 1, &[0; 2]).is_err());
            assert!(ram.write(arena.end() - 1, &[0; 2]).is_err());
        }
    }

    #[test]
    fn the_guest_s_own_writes_end_at_the_arena_s_code() {
        let ram = GuestRam::new(64).unwrap();
        let Stretch { phys, len } = ram.arena().code;
        for at in [phys - 1, phys, phys + len - 1] {
            assert!(ram.write_as_guest(at, &[1; 2]).is_err(), "{at:#x}");
        }
        let mut byte = [0];
        ram.read(phys + len, &mut byte).unwrap();
        assert_eq!(byte, [0], "a refused write changed memory");
        ram.write_as_guest(phys + len, &[1; 8]).unwrap();
        ram.write_as_guest(0x1000, &[1; 8]).unwrap();
        assert!(ram.write_as_guest(u64::MAX, &[1; 8]).is_err());
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
