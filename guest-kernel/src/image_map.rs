//! Where the kernel image is in physical memory.

use std::ops::Range;

use guest_state::{GuestPhysAddr, GuestVirtAddr, Segment};

/// The kernel image, as loaded. Its text stays there: x86-64 Linux moves itself
/// only before its 64-bit entry, while it decompresses
/// (`arch/x86/boot/compressed`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageMap {
    segments: Vec<Segment>,
}

impl ImageMap {
    /// Makes the map of an image with these segments.
    pub fn new(segments: Vec<Segment>) -> Self {
        Self { segments }
    }

    /// Returns where an address of the image is, and how many bytes from there on are contiguous;
    /// `None` outside the image.
    pub fn to_phys(&self, at: GuestVirtAddr) -> Option<(GuestPhysAddr, u64)> {
        self.segments.iter().find_map(|segment| {
            let offset = at.offset_from(segment.virt)?;
            let left = segment.len.checked_sub(offset).filter(|left| *left != 0)?;
            Some((segment.phys.checked_add(offset)?, left))
        })
    }

    /// Returns true if a part of the image is in this range.
    pub fn overlaps(&self, range: &Range<GuestVirtAddr>) -> bool {
        self.segments.iter().any(|segment| {
            segment.virt < range.end && segment.virt.wrapping_add(segment.len) > range.start
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_image_are_translated() {
        let segment = |virt, phys, len| Segment {
            virt: GuestVirtAddr(virt),
            phys: GuestPhysAddr(phys),
            len,
        };
        let map = ImageMap::new(vec![
            segment(0x1000, 0x9000, 0x100),
            segment(0x3000, 0x100, 1),
        ]);
        for (virt, phys) in [
            (0xfff, None),
            (0x1000, Some((0x9000, 0x100))),
            (0x10ff, Some((0x90ff, 1))),
            (0x1100, None),
            (0x3000, Some((0x100, 1))),
            (u64::MAX, None),
        ] {
            let phys = phys.map(|(at, left)| (GuestPhysAddr(at), left));
            assert_eq!(map.to_phys(GuestVirtAddr(virt)), phys, "{virt:#x}");
        }
        for (start, end, overlaps) in [
            (0, 0x1000, false),
            (0xfff, 0x1001, true),
            (0x1010, 0x1020, true),
            (0x1100, 0x3000, false),
            (0x1100, 0x3001, true),
        ] {
            let range = GuestVirtAddr(start)..GuestVirtAddr(end);
            assert_eq!(map.overlaps(&range), overlaps, "{start:#x} to {end:#x}");
        }
    }
}
