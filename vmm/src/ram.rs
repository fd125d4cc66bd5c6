//! Guest memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guest_state::x86_64::PAGE_SIZE;
use guest_state::{ArenaMemory, GuestMemory, GuestPhysAddr, MemoryError, PhysRange};
use rustix::mm::Advice;
use thiserror::Error;
use vm_memory::{
    Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MmapRegion, VolatileMemory, VolatileSlice,
};

use crate::x86_64::layout;
use crate::x86_64::prefetch::prefetch;

/// Bytes in a MiB.
pub(crate) const MIB: u64 = 1 << 20;
/// Bytes of a word.
const WORD: usize = 8;
/// MiB of a huge page: the size that every x86-64 processor has (SDM vol. 3, 4.5).
const HUGE_PAGE_MIB: u64 = 2;
/// Where the host tells how many huge pages of that size are free (Documentation/admin-guide/mm/hugetlbpage.rst).
const FREE_HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// The memory of a guest to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RamConfig {
    /// MiB of the guest's own memory.
    pub(crate) mib: u64,
    /// vCPUs, for which the arena has room.
    pub(crate) vcpus: u32,
    /// The guest's own memory consists of huge pages, which are the guest's from the start.
    pub(crate) huge_pages: bool,
}

/// Memory of one guest: what the guest knows as its own, and the arena. Clones share it.
///
/// It is mapped without being reserved or touched: the host gives pages as the
/// guest uses them.
#[derive(Clone, Debug)]
pub struct GuestRam {
    /// The mapping of the region at address 0, which has nearly all of what a hit reads and writes: found without a
    /// search.
    low: Arc<MmapRegion>,
    /// What the guest is told about.
    known: Arc<GuestMemoryMmap>,
    /// The same and the arena.
    all: Arc<GuestMemoryMmap>,
    arena: ArenaMemory,
}

/// The arena of a guest whose memory ends at `ram_end`: at least a page above it, and above the device
/// hole.
fn arena_above(ram_end: u64, vcpus: u32) -> Option<ArenaMemory> {
    let free = ram_end
        .max(layout::DEVICE_HOLE_END)
        .checked_add(PAGE_SIZE)?;
    let range = |start: u64, len: u64| {
        start.checked_add(len)?;
        let start = GuestPhysAddr(start);
        Some(PhysRange { start, len })
    };
    let start = free.checked_next_multiple_of(layout::ARENA_ALIGN)?;
    let code = range(start, layout::ARENA_CODE_LEN)?;
    Some(ArenaMemory {
        tables: GuestPhysAddr(layout::ARENA_TABLES),
        code,
        data: range(code.end().0, layout::arena_data_len(vcpus))?,
        vcpus,
    })
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
    /// The host has too few huge pages.
    #[error(
        "{mib} MiB of memory take {needed} huge pages of {HUGE_PAGE_MIB} MiB, and the host has {free} that are free; \
         have more of them (`sysctl vm.nr_hugepages=...`), ask for less memory, or do without huge pages"
    )]
    HugePages {
        /// What was asked for.
        mib: u64,
        /// Huge pages of it.
        needed: u64,
        /// What the host says of free ones.
        free: String,
    },
    /// Memory that isn't a multiple of a huge page.
    #[error("{0} MiB of memory are not a multiple of a huge page, which has {HUGE_PAGE_MIB} MiB")]
    NotHuge(u64),
}

impl GuestRam {
    /// Maps `mib` MiB of memory for a guest of one vCPU.
    ///
    /// # Errors
    /// The host has no room for it.
    pub fn new(mib: u64) -> Result<Self, RamError> {
        Self::with(RamConfig {
            mib,
            vcpus: 1,
            huge_pages: false,
        })
    }

    /// Maps guest memory: below the device hole as much as fits, the rest from 4 GiB on. The arena comes above.
    ///
    /// # Errors
    /// The host has no room for it.
    pub(crate) fn with(config: RamConfig) -> Result<Self, RamError> {
        let mib = config.mib;
        if config.huge_pages && !mib.is_multiple_of(HUGE_PAGE_MIB) {
            return Err(RamError::NotHuge(mib));
        }
        let error = |cause: String| RamError::Map { mib, cause };
        let bytes = mib
            .checked_mul(MIB)
            .ok_or_else(|| error("the size overflows".into()))?;
        let region = |start: u64, len: u64| {
            let region = GuestRegionMmap::from_range(GuestAddress(start), len as usize, None);
            let region = region.map_err(|e| error(e.to_string()))?;
            leave_out_of_core_dumps(&region);
            Ok(Arc::new(region))
        };
        let own = |start: u64, len: u64| match config.huge_pages {
            true => huge_region(start, len).ok_or_else(|| RamError::HugePages {
                mib,
                needed: mib / HUGE_PAGE_MIB,
                free: free_huge_pages(),
            }),
            false => region(start, len).inspect(|region| ask_for_huge_pages(region)),
        };
        let collection = |regions: &[Arc<GuestRegionMmap>]| {
            let all = GuestMemoryMmap::from_arc_regions(regions.to_vec());
            all.map(Arc::new).map_err(|e| error(e.to_string()))
        };
        let low_len = bytes.min(layout::DEVICE_HOLE);
        let low = own(0, low_len)?;
        let mut regions = vec![Arc::clone(&low)];
        if bytes > low_len {
            regions.push(own(layout::DEVICE_HOLE_END, bytes - low_len)?);
        }
        let known = collection(&regions)?;
        let ram_end = known.last_addr().raw_value() + 1;
        let arena =
            arena_above(ram_end, config.vcpus).ok_or_else(|| error("the size overflows".into()))?;
        for PhysRange { start, len } in [arena.code, arena.data] {
            regions.push(region(start.0, len)?);
        }
        Ok(Self {
            low: low.get_mmap(),
            known,
            all: collection(&regions)?,
            arena,
        })
    }

    /// The memory that the guest isn't told about.
    pub fn arena(&self) -> ArenaMemory {
        self.arena
    }

    /// Where the guest's own memory is.
    pub fn ranges(&self) -> Vec<PhysRange> {
        let range = |region: &GuestRegionMmap| PhysRange {
            start: GuestPhysAddr(region.start_addr().raw_value()),
            len: region.len(),
        };
        self.known.iter().map(range).collect()
    }

    /// End of the memory below the device hole.
    pub(crate) fn low_end(&self) -> u64 {
        self.ranges().first().map_or(0, |range| range.end().0)
    }

    /// The mapping of the guest's own memory, for loaders.
    pub(crate) fn known(&self) -> &GuestMemoryMmap {
        &self.known
    }

    /// The same, for devices: what they read and write for the guest is never in the arena.
    pub(crate) fn shared(&self) -> &Arc<GuestMemoryMmap> {
        &self.known
    }

    /// Memory that is in one region.
    fn slice(&self, at: GuestPhysAddr, len: usize) -> Option<VolatileSlice<'_>> {
        let offset = usize::try_from(at.0).ok();
        match offset.map(|offset| self.low.get_slice(offset, len)) {
            Some(Ok(slice)) => Some(slice),
            _ => self.all.get_slice(GuestAddress(at.0), len).ok(),
        }
    }

    /// Reads a word above the first region, or one that isn't aligned and can't be loaded at once.
    #[inline(never)]
    fn read_other_u64(&self, at: GuestPhysAddr) -> Result<u64, MemoryError> {
        let slice = self.slice(at, WORD);
        if let Some(word) = slice.and_then(|slice| slice.load(0, Ordering::Relaxed).ok()) {
            return Ok(u64::from_le(word));
        }
        let mut word = [0; WORD];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// The mapping of all memory, for KVM.
    pub(crate) fn all(&self) -> &GuestMemoryMmap {
        &self.all
    }
}

impl GuestMemory for GuestRam {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        let len = into.len();
        match self.slice(at, len) {
            Some(slice) => {
                slice.copy_to(into);
                Ok(())
            }
            // Regions may touch.
            None => {
                let read = self.all.read_slice(into, GuestAddress(at.0));
                read.map_err(|_| MemoryError { at, len })
            }
        }
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        let len = from.len();
        let outside = MemoryError { at, len };
        if let Some(slice) = self.slice(at, len) {
            if !store_whole(&slice, from) {
                slice.copy_from(from);
            }
            return Ok(());
        }
        if !self.all.check_range(GuestAddress(at.0), len) {
            return Err(outside);
        }
        let written = self.all.write_slice(from, GuestAddress(at.0));
        written.map_err(|_| outside)
    }

    fn write_as_guest(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        let len = from.len();
        if self.arena.code.overlaps(at, len) {
            return Err(MemoryError { at, len });
        }
        self.write(at, from)
    }

    fn replace(&self, at: GuestPhysAddr, from: u8, to: u8) -> Result<bool, MemoryError> {
        // Looked up once: a batch of probes does this thousands of times while the guest stands still.
        let slice = self.slice(at, 1).ok_or(MemoryError { at, len: 1 })?;
        let byte = slice.get_ref::<u8>(0);
        let byte = byte.map_err(|_| MemoryError { at, len: 1 })?;
        let is_there = byte.load() == from;
        if is_there {
            byte.store(to);
        }
        Ok(is_there)
    }

    fn prefetch(&self, at: GuestPhysAddr) {
        if let Some(slice) = self.slice(at, 1) {
            prefetch(slice.ptr_guard().as_ptr().addr());
        }
    }

    #[inline]
    fn read_u64(&self, at: GuestPhysAddr) -> Result<u64, MemoryError> {
        let offset = usize::try_from(at.0).unwrap_or(usize::MAX);
        match self.low.get_atomic_ref::<AtomicU64>(offset) {
            Ok(word) => Ok(u64::from_le(word.load(Ordering::Relaxed))),
            Err(_) => self.read_other_u64(at),
        }
    }
}

/// Memory of the host's huge pages, all of them taken now. None if there are too few (mmap(2), `MAP_HUGETLB`: without
/// `MAP_NORESERVE` they are reserved).
fn huge_region(start: u64, len: u64) -> Option<Arc<GuestRegionMmap>> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    let mapping = MmapRegion::build(None, usize::try_from(len).ok()?, prot, flags).ok()?;
    let region = GuestRegionMmap::new(mapping, GuestAddress(start))?;
    leave_out_of_core_dumps(&region);
    Some(Arc::new(region))
}

/// The number of huge pages that are free, in the host's words.
fn free_huge_pages() -> String {
    match std::fs::read_to_string(FREE_HUGE_PAGES) {
        Ok(free) => free.trim().to_owned(),
        Err(_) => "none".to_owned(),
    }
}

/// Lets the host use huge pages where memory comes to be used, if it can (madvise(2), transparent huge pages).
fn ask_for_huge_pages(region: &GuestRegionMmap) {
    let (start, len) = (region.as_ptr().cast(), region.size());
    // SAFETY: `start` and `len` are the whole of a mapping that `region` owns, and the advice leaves its content alone.
    let advised = unsafe { rustix::mm::madvise(start, len, Advice::LinuxHugepage) };
    if let Err(error) = advised {
        tracing::debug!("the host makes no huge pages of guest memory: {error}");
    }
}

/// Keeps the guest's memory, with all its secrets, out of core dumps of this process (madvise(2)).
fn leave_out_of_core_dumps(region: &GuestRegionMmap) {
    let (start, len) = (region.as_ptr().cast(), region.size());
    // SAFETY: `start` and `len` are the whole of a mapping that `region` owns, and the advice leaves its content alone.
    let advised = unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontDump) };
    if let Err(error) = advised {
        tracing::warn!("core dumps of this process would have the guest's memory: {error}");
    }
}

/// Stores 2, 4 or 8 bytes in one access, so that the guest sees all of them or none. Returns false for any other number
/// of bytes, or if they aren't aligned.
fn store_whole(slice: &VolatileSlice<'_>, from: &[u8]) -> bool {
    let stored = match *from {
        [a, b] => slice.store(u16::from_ne_bytes([a, b]), 0, Ordering::Relaxed),
        [a, b, c, d] => slice.store(u32::from_ne_bytes([a, b, c, d]), 0, Ordering::Relaxed),
        [a, b, c, d, e, f, g, h] => {
            let word = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
            slice.store(word, 0, Ordering::Relaxed)
        }
        _ => return false,
    };
    stored.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn memory_beyond_the_device_hole_goes_on_at_4_gib() {
        let ram = GuestRam::new(5 * 1024).unwrap();
        let ranges = ram.ranges().into_iter();
        let ranges: Vec<_> = ranges.map(|range| (range.start.0, range.len)).collect();
        assert_eq!(ranges, [(0, 3 << 30), (4 << 30, 2 << 30)]);
        assert_eq!(ram.low_end(), 3 << 30);
        let at = |at| GuestPhysAddr(at);
        ram.write(at((6 << 30) - 4), &[1, 2, 3, 4]).unwrap();
        assert_eq!(
            ram.write(at((6 << 30) - 3), &[0; 4]),
            Err(MemoryError {
                at: at((6 << 30) - 3),
                len: 4
            })
        );
        let mut back = [0; 4];
        ram.read(at((6 << 30) - 4), &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4]);
    }

    #[test]
    fn no_memory_of_a_guest_gets_into_core_dumps() {
        let ram = GuestRam::new(5 * 1024).unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        // Neighbours may be one mapping.
        let mut mappings = Vec::new();
        for line in maps.lines() {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let bound = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(start), Some(end))) = range.map(|(a, b)| (bound(a), bound(b))) {
                mappings.push((start..end, false));
            } else if line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "dd") {
                mappings.last_mut().unwrap().1 = true;
            }
        }
        for region in ram.all().iter() {
            let start = region.as_ptr() as usize;
            let mapping = mappings.iter().find(|(range, _)| range.contains(&start));
            let (range, left_out) = mapping.unwrap();
            assert!(*left_out && start + region.size() <= range.end);
        }
    }

    #[test]
    fn the_device_hole_is_not_memory() {
        let ram = GuestRam::new(5 * 1024).unwrap();
        assert!(
            ram.read(GuestPhysAddr(layout::LOCAL_APIC.into()), &mut [0; 8])
                .is_err()
        );
        assert!(ram.read(GuestPhysAddr((3 << 30) - 4), &mut [0; 8]).is_err());
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
            assert_eq!(arena.code.start.0, phys, "{mib} MiB");
            assert_eq!(arena.data.start, arena.code.end());
            assert_eq!(
                ram.ranges().iter().map(|range| range.len).sum::<u64>(),
                mib * MIB
            );
            assert_eq!(ram.low_end(), (mib * MIB).min(3 << 30));
            for range in [arena.code, arena.data] {
                let last = GuestPhysAddr(range.end().0 - 8);
                ram.write(last, &[7; 8]).unwrap();
                let mut back = [0; 8];
                ram.read(last, &mut back).unwrap();
                assert_eq!(back, [7; 8]);
            }
            for outside in [arena.code.start.0 - 1, arena.data.end().0 - 1] {
                assert!(ram.write(GuestPhysAddr(outside), &[0; 2]).is_err());
            }
        }
    }

    #[test]
    fn the_guest_s_own_writes_end_at_the_arena_s_code() {
        let ram = GuestRam::new(64).unwrap();
        let code = ram.arena().code;
        let write = |at, bytes: &[u8]| ram.write_as_guest(GuestPhysAddr(at), bytes);
        for at in [code.start.0 - 1, code.start.0, code.end().0 - 1] {
            assert!(write(at, &[1; 2]).is_err(), "{at:#x}");
        }
        let mut byte = [0];
        ram.read(code.end(), &mut byte).unwrap();
        assert_eq!(byte, [0], "a refused write changed memory");
        write(code.end().0, &[1; 8]).unwrap();
        write(0x1000, &[1; 8]).unwrap();
        assert!(write(u64::MAX, &[1; 8]).is_err());
    }

    #[test]
    fn an_aligned_write_is_whole_wherever_its_bytes_come_from() {
        let ram = GuestRam::new(64).unwrap();
        let at = GuestPhysAddr(0x1000);
        let words = [0, u64::MAX];
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200_000 {
                    // One of these two begins at an odd address.
                    let mut bytes = [0; 2 * WORD];
                    let start = 1 - bytes.as_ptr().addr() % 2;
                    bytes[start..start + WORD].copy_from_slice(&words[round % 2].to_ne_bytes());
                    ram.write(at, &bytes[start..start + WORD]).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let word = ram.read_u64(at).unwrap();
                assert!(words.contains(&word), "{word:#x}");
            }
        });
    }

    #[test]
    fn a_byte_is_replaced_where_it_is_the_one_that_is_expected() {
        let ram = GuestRam::new(64).unwrap();
        let at = GuestPhysAddr(0x1000);
        ram.write(at, &[1, 2, 3]).unwrap();
        assert_eq!(ram.replace(at.wrapping_add(1), 2, 9), Ok(true));
        assert_eq!(ram.replace(at.wrapping_add(2), 2, 9), Ok(false));
        let mut back = [0; 3];
        ram.read(at, &mut back).unwrap();
        assert_eq!(back, [1, 9, 3]);
        let at = ram.arena().data.end();
        assert_eq!(ram.replace(at, 0, 9), Err(MemoryError { at, len: 1 }));
    }

    #[test]
    fn words_are_read_wherever_they_are() {
        let ram = GuestRam::new(5 * 1024).unwrap();
        // The last two lie over the end of the code and of all memory.
        let code_end = ram.arena().code.end().0;
        for at in [0x1000, 0x1001, 0x1ffc, code_end - 4] {
            ram.write(GuestPhysAddr(at), &[1, 2, 3, 4, 5, 6, 7, 8])
                .unwrap();
            assert_eq!(ram.read_u64(GuestPhysAddr(at)), Ok(0x0807_0605_0403_0201));
        }
        let at = GuestPhysAddr(ram.arena().data.end().0 - 4);
        assert_eq!(ram.read_u64(at), Err(MemoryError { at, len: 8 }));
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
