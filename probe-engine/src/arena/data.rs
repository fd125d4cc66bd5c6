//! Where the guest finds what in the arena's data.

use guest_state::x86_64::paging::PageSize;
use guest_state::{GuestPhysAddr, GuestVirtAddr, PhysRange};

use super::areas::{BLOCKS, CALLS, HOLE, RINGS};
use crate::ring::layout;

/// What one entry of a page directory maps.
pub(super) const LARGE_PAGE: u64 = PageSize::Size2M.bytes();

/// The blocks' part of the memory is its beginning.
const BLOCKS_LEN: u64 = BLOCKS.end.0 - BLOCKS.start.0;
/// The part for calls is right behind.
const CALLS_LEN: u64 = CALLS.end.0 - CALLS.start.0;
/// Where the rings' part of the memory begins, from its start.
const FIRST_RING: u64 = 32 << 20;

const _: () = {
    assert!(layout::RING_LEN.is_multiple_of(LARGE_PAGE));
    assert!(BLOCKS_LEN.is_multiple_of(LARGE_PAGE) && CALLS_LEN.is_multiple_of(LARGE_PAGE));
    assert!(BLOCKS_LEN + CALLS_LEN <= FIRST_RING);
    assert!(CALLS.start.0 >= BLOCKS.end.0 && RINGS.0 >= CALLS.end.0);
};

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

/// All that is mapped of the data: the blocks' window, as far as the memory goes, the table of calls and
/// each ring if they are wholly inside it, the rings twice in a row.
pub(super) fn stretches(data: PhysRange) -> impl Iterator<Item = Stretch> {
    let blocks = Stretch {
        virt: BLOCKS.start,
        phys: data.start,
        len: data.len.min(BLOCKS_LEN),
    };
    let calls = Stretch {
        virt: CALLS.start,
        phys: data.start.wrapping_add(BLOCKS_LEN),
        len: CALLS_LEN,
    };
    let rings = (0..layout::RINGS).flat_map(move |ring| {
        let offset = FIRST_RING + ring * layout::RING_LEN;
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

/// Which entry of the page directory for the bottom of the hole maps an address there.
pub(super) fn entry(at: GuestVirtAddr) -> usize {
    ((at.0 - HOLE.start.0) / LARGE_PAGE) as usize
}
