//! Where the guest has the parts of the arena's data.

use guest_state::x86_64::paging::PageSize;
use guest_state::{ArenaMemory, GuestPhysAddr, GuestVirtAddr};

use super::areas::{BLOCKS, CALLS, HOLE, RINGS};
use crate::ring::layout;

/// What one entry of a page directory maps.
pub(super) const LARGE_PAGE: u64 = PageSize::Size2M.bytes();

/// The least bytes for the blocks, which are at the beginning of the memory.
const MIN_BLOCKS_LEN: u64 = 16 << 20;
/// Bytes for each vCPU's block, where there are many vCPUs: Linux has its CPUs' variables 256 KiB apart in a usual
/// configuration, and 512 KiB with its checks of locks (`pcpu_build_alloc_info` in `mm/percpu.c`).
const BLOCKS_LEN_A_VCPU: u64 = 1 << 20;
/// The part for calls is right behind, and then come the rings.
const CALLS_LEN: u64 = CALLS.end.0 - CALLS.start.0;

const _: () = {
    assert!(layout::RING_LEN.is_multiple_of(LARGE_PAGE));
    assert!(MIN_BLOCKS_LEN.is_multiple_of(LARGE_PAGE) && CALLS_LEN.is_multiple_of(LARGE_PAGE));
    assert!(blocks_len(layout::RINGS as u32) <= BLOCKS.end.0 - BLOCKS.start.0);
    assert!(CALLS.start.0 >= BLOCKS.end.0 && RINGS.0 >= CALLS.end.0);
    assert!(RINGS.0 + 2 * layout::RINGS * layout::RING_LEN <= HOLE.start.0 + (1 << 30));
};

/// Bytes for the blocks of `vcpus` vCPUs.
pub const fn blocks_len(vcpus: u32) -> u64 {
    let len = (vcpus as u64 * BLOCKS_LEN_A_VCPU).next_multiple_of(LARGE_PAGE);
    match len > MIN_BLOCKS_LEN {
        true => len,
        false => MIN_BLOCKS_LEN,
    }
}

/// A part of the hole and the memory that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) virt: GuestVirtAddr,
    pub(super) phys: GuestPhysAddr,
    /// In bytes, a multiple of 2 MiB.
    pub(super) len: u64,
}

impl Stretch {
    /// Where an address of it is in physical memory.
    pub(super) fn to_phys(self, at: GuestVirtAddr) -> Option<GuestPhysAddr> {
        let offset = at.offset_from(self.virt)?;
        (offset < self.len).then(|| self.phys.wrapping_add(offset))
    }
}

/// Returns all that is mapped of the data: the blocks' window, as far as the memory goes, the table of calls and each
/// ring if they are wholly inside it, the rings twice in a row.
///
/// A guest that writes over its heads may lead a detour to a ring of any number. So the places of rings that no vCPU
/// has are mapped as well, to the memory of other rings: a record there is no worse than the guest's own writing.
pub(super) fn stretches(region: &ArenaMemory) -> impl Iterator<Item = Stretch> {
    let (data, blocks_len) = (region.data, blocks_len(region.vcpus));
    let blocks = Stretch {
        virt: BLOCKS.start,
        phys: data.start,
        len: data.len.min(blocks_len),
    };
    let calls = Stretch {
        virt: CALLS.start,
        phys: data.start.wrapping_add(blocks_len),
        len: CALLS_LEN,
    };
    let first_ring = blocks_len + CALLS_LEN;
    let vcpus = u64::from(region.vcpus.max(1));
    let rings = (0..layout::RINGS).flat_map(move |ring| {
        let offset = first_ring + ring % vcpus * layout::RING_LEN;
        [0, 1].map(|round| Stretch {
            virt: RINGS.wrapping_add((2 * ring + round) * layout::RING_LEN),
            phys: data.start.wrapping_add(offset),
            len: layout::RING_LEN,
        })
    });
    let inside = move |it: &Stretch| it.phys.0 + it.len <= data.start.0 + data.len;
    let others = std::iter::once(calls).chain(rings);
    std::iter::once(blocks).chain(others.filter(inside))
}

/// Returns which entry of the page directory for the bottom of the hole maps an address there.
pub(super) fn entry(at: GuestVirtAddr) -> usize {
    ((at.0 - HOLE.start.0) / LARGE_PAGE) as usize
}
