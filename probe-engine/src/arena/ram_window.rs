//! The guest's RAM, mapped once more for detours that follow pointers.
//!
//! The kernel takes pages out of its own direct mapping (`memfd_secret`, poisoned memory, page allocation under
//! debugging), so a detour that read there might fault. This mapping is the arena's own: read-only, of all
//! RAM from 1 MiB on, and the same for good. What it doesn't map is told by two comparisons.

use guest_state::x86_64::PAGE_SIZE;
use guest_state::x86_64::page_entry::{ACCESSED, LARGE, NO_EXECUTE, PRESENT};
use guest_state::x86_64::paging::PageSize;
use guest_state::{GuestMemory, GuestPhysAddr, MemoryError, PhysRange};

use super::data::LARGE_PAGE;

/// What a page directory maps.
const GIGABYTE: u64 = PageSize::Size1G.bytes();
/// Page directories that there is room for, behind the arena's own two.
const DIRECTORIES: u64 = 30;
/// Nothing of the kernel's is below: it keeps off the first MiB (`arch/x86/realmode/init.c`,
/// `reserve_real_mode`), in which there is also memory of devices.
const FIRST: u64 = 1 << 20;
/// Where RAM goes on behind the devices' memory.
const HIGH: u64 = 4 << 30;

/// Read-only, never dirty (together with read-only that would mean a shadow stack), and not global, so that where
/// the kernel isolates page tables it leaves the TLB with the kernel's.
const PAGE: u64 = PRESENT | ACCESSED | LARGE | NO_EXECUTE;

/// The guest's RAM as detours may read it: two ranges of whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedRam {
    /// From 1 MiB on.
    pub low: PhysRange,
    /// From 4 GiB on; empty where there is none.
    pub high: PhysRange,
}

impl MappedRam {
    /// Of all RAM what can be mapped. `None` if it isn't where a PC has it, or there are more page directories
    /// needed than there is room for.
    pub(super) fn of(ram: &[PhysRange]) -> Option<Self> {
        let end = |from: u64| {
            let part = ram
                .iter()
                .find(|part| part.start.0 <= from && part.end().0 > from);
            part.map_or(from, |part| part.end().0 & !(PAGE_SIZE - 1))
        };
        let range = |start: u64| PhysRange {
            start: GuestPhysAddr(start),
            len: end(start) - start,
        };
        let (low, high) = (range(FIRST), range(HIGH));
        let fits =
            low.len > 0 && low.end().0 <= HIGH && high.end().0.div_ceil(GIGABYTE) <= DIRECTORIES;
        fits.then_some(Self { low, high })
    }

    /// The numbers of the gigabytes of physical memory that have a page directory.
    pub(super) fn directories(self) -> impl Iterator<Item = u64> {
        [self.low, self.high].into_iter().flat_map(|part| {
            let behind = match part.len {
                0 => part.start.0 / GIGABYTE,
                _ => part.end().0.div_ceil(GIGABYTE),
            };
            part.start.0 / GIGABYTE..behind
        })
    }

    /// Writes the page directory of a gigabyte. A page of 2 MiB is mapped whole even where only a part of it is
    /// RAM: nobody reads the rest.
    pub(super) fn write_directory(
        self,
        memory: &dyn GuestMemory,
        gigabyte: u64,
        directory: GuestPhysAddr,
    ) -> Result<(), MemoryError> {
        let mut entries = [0; PAGE_SIZE as usize];
        let pages = (gigabyte * GIGABYTE..).step_by(LARGE_PAGE as usize);
        for (entry, page) in entries.as_chunks_mut().0.iter_mut().zip(pages) {
            let is_ram = |part: PhysRange| {
                page < part.end().0 && page + LARGE_PAGE > part.start.0 && part.len > 0
            };
            if is_ram(self.low) || is_ram(self.high) {
                *entry = (page | PAGE).to_le_bytes();
            }
        }
        memory.write(directory, &entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PhysRange {
        PhysRange {
            start: GuestPhysAddr(start),
            len: end - start,
        }
    }

    #[test]
    fn ram_from_1_mib_and_from_4_gib_on_is_mapped() {
        let low = [range(0, 0x9_f000), range(FIRST, 0xc000_0000)];
        let found = MappedRam::of(&low).unwrap();
        assert_eq!(found.low, range(FIRST, 0xc000_0000));
        assert_eq!(found.high.len, 0);
        assert_eq!(found.directories().collect::<Vec<_>>(), [0, 1, 2]);

        let both = [range(0, 0xc000_0000), range(HIGH, HIGH + GIGABYTE + 4096)];
        let found = MappedRam::of(&both).unwrap();
        assert_eq!(found.high, range(HIGH, HIGH + GIGABYTE + 4096));
        assert_eq!(found.directories().collect::<Vec<_>>(), [0, 1, 2, 4, 5]);

        let part = [range(0, (16 << 20) + 100)];
        assert_eq!(MappedRam::of(&part).unwrap().low, range(FIRST, 16 << 20));
    }

    #[test]
    fn more_ram_than_there_are_directories_for_is_not_mapped() {
        let of = |end| MappedRam::of(&[range(0, 0xc000_0000), range(HIGH, end)]);
        assert!(of(30 << 30).is_some());
        assert_eq!(of((30 << 30) + 4096), None);
        assert_eq!(MappedRam::of(&[range(0, FIRST)]), None);
        assert_eq!(MappedRam::of(&[]), None);
    }
}
