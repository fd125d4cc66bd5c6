//! The guest's RAM, mapped once more for detours that follow pointers.
//!
//! The kernel takes pages out of its own direct mapping (`memfd_secret`, poisoned memory, page allocation under
//! debugging), so a detour that read there might fault. This mapping is the arena's own: read-only, of all RAM from 1
//! MiB on, and the same for good. Two comparisons tell whether it maps an address.

use guest_state::x86_64::PAGE_SIZE;
use guest_state::x86_64::page_entry::{ACCESSED, LARGE, NO_EXECUTE, PRESENT};
use guest_state::x86_64::paging::PageSize;
use guest_state::{GuestMemory, GuestPhysAddr, MemoryError, PhysRange};

use super::data::LARGE_PAGE;

/// What a page directory maps.
const GIGABYTE: u64 = PageSize::Size1G.bytes();
/// Page directories that there is room for, behind the arena's own two.
const DIRECTORIES: usize = 30;
/// Gigabytes of addresses from [`RAM_WINDOW`](super::areas::RAM_WINDOW) on that the kernel leaves unused.
const ADDRESSES: u64 = 444;
/// The kernel has nothing below: it keeps off the first MiB (`arch/x86/realmode/init.c`, `reserve_real_mode`), in which
/// there is also memory of devices.
const FIRST: u64 = 1 << 20;
/// Where RAM goes on behind the devices' memory.
const HIGH: u64 = 4 << 30;

/// Read-only, never dirty (together with read-only that would mean a shadow stack), and not global, so that where the
/// kernel isolates page tables these entries leave the TLB with the kernel's.
const PAGE: u64 = PRESENT | ACCESSED | LARGE | NO_EXECUTE;

/// How a gigabyte of physical memory is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mapping {
    /// By one entry, as all of it is RAM.
    Whole(u64),
    /// By a page directory, in pages of 2 MiB.
    Directory,
}

/// The guest's RAM as detours may read it: two ranges of whole pages of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedRam {
    /// From 1 MiB on.
    pub low: PhysRange,
    /// From 4 GiB on; empty where there is none.
    pub high: PhysRange,
    /// Page tables may map 1 GiB by one entry.
    gigabyte_pages: bool,
}

impl MappedRam {
    /// Returns the part of all RAM that can be mapped; `gigabyte_pages` says if the guest's CPUs have such pages.
    /// `None` if RAM isn't where a PC has it, or there is no room for the page directories or the addresses of so much:
    /// 444 GiB, without `gigabyte_pages` 30.
    pub fn of(ram: &[PhysRange], gigabyte_pages: bool) -> Option<Self> {
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
        let found = Self {
            low,
            high,
            gigabyte_pages,
        };
        let directories = found
            .gigabytes()
            .filter(|(_, mapping)| *mapping == Mapping::Directory);
        let fits = low.len > 0
            && low.end().0 <= HIGH
            && high.end().0.div_ceil(GIGABYTE) <= ADDRESSES
            && directories.count() <= DIRECTORIES;
        fits.then_some(found)
    }

    /// The numbers of the gigabytes of physical memory that have RAM, and how each is mapped.
    pub(super) fn gigabytes(self) -> impl Iterator<Item = (u64, Mapping)> {
        [self.low, self.high].into_iter().flat_map(move |part| {
            let behind = match part.len {
                0 => part.start.0 / GIGABYTE,
                _ => part.end().0.div_ceil(GIGABYTE),
            };
            let numbers = part.start.0 / GIGABYTE..behind;
            numbers.map(move |number| {
                let start = number * GIGABYTE;
                let is_whole = part.start.0 <= start && start + GIGABYTE <= part.end().0;
                match is_whole && self.gigabyte_pages {
                    true => (number, Mapping::Whole(start | PAGE)),
                    false => (number, Mapping::Directory),
                }
            })
        })
    }

    /// Writes the page directory of a gigabyte. A page of 2 MiB is mapped whole even where only a part of it is RAM: no
    /// detour reads the rest.
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
        let found = MappedRam::of(&low, false).unwrap();
        assert_eq!(found.low, range(FIRST, 0xc000_0000));
        assert_eq!(found.high.len, 0);
        let directories = |ram: MappedRam| -> Vec<u64> {
            let is_one = |(number, mapping)| (mapping == Mapping::Directory).then_some(number);
            ram.gigabytes().filter_map(is_one).collect()
        };
        assert_eq!(directories(found), [0, 1, 2]);

        let both = [range(0, 0xc000_0000), range(HIGH, HIGH + GIGABYTE + 4096)];
        let found = MappedRam::of(&both, false).unwrap();
        assert_eq!(found.high, range(HIGH, HIGH + GIGABYTE + 4096));
        assert_eq!(directories(found), [0, 1, 2, 4, 5]);

        let part = [range(0, (16 << 20) + 100)];
        let found = MappedRam::of(&part, false).unwrap();
        assert_eq!(found.low, range(FIRST, 16 << 20));
    }

    #[test]
    fn gigabytes_that_are_ram_throughout_are_mapped_by_one_entry_each_if_the_cpu_can() {
        let ram = [range(0, 0xc000_0000), range(HIGH, HIGH + GIGABYTE + 4096)];
        let found = MappedRam::of(&ram, true).unwrap();
        let whole = |number: u64| (number, Mapping::Whole((number * GIGABYTE) | PAGE));
        let directory = |number| (number, Mapping::Directory);
        // The first begins with what is no RAM, the last ends with it.
        let expected = [directory(0), whole(1), whole(2), whole(4), directory(5)];
        assert_eq!(found.gigabytes().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn more_ram_than_there_is_room_for_is_not_mapped() {
        let of = |end, large| MappedRam::of(&[range(0, 0xc000_0000), range(HIGH, end)], large);
        // One gigabyte has no RAM, so no directory.
        assert!(of(31 << 30, false).is_some());
        assert_eq!(of((31 << 30) + 4096, false), None);
        assert!(of(444 << 30, true).is_some());
        assert_eq!(of((444 << 30) + 4096, true), None);
        assert_eq!(MappedRam::of(&[range(0, FIRST)], true), None);
        assert_eq!(MappedRam::of(&[], true), None);
    }
}
