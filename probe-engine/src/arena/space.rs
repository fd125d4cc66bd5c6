//! Where detours go.
//!
//! A jump can lead only to addresses that its [`Pattern`] allows: sometimes all, sometimes one in 64 KiB, sometimes one
//! at all. A detour begins at such an address; where there is no room for all of it, 5 bytes there are a *springboard*,
//! a jump to the detour. Patterns that leave 16 MiB or less get springboards only, so that no detour covers the single
//! address that another jump can lead to.
//!
//! Detours that aren't bound to a place are put next to what is there already: each page of 4 KiB costs the host memory
//! once it is written to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::PAGE_SIZE;

use crate::detour::{JUMP_LEN, Pattern};

/// The distance that a jump can't reach.
const REACH: u64 = 1 << 31;
/// A detour has to be in reach not only of its probe, but also of the targets of branches there and of what operands
/// there name.
const MARGIN: u64 = 1 << 25;
/// Where detours begin if their pattern allows it. The 16 MiB that jumps from a kernel at its usual place reach with an
/// uppermost byte of 0xCC lie below.
const START: u64 = 0xffff_ffff_6000_0000;
/// The bytes that a jump can reach if its uppermost byte is fixed. Such jumps get springboards only.
const TIED: u64 = 1 << 24;
/// The numbers of the patterns that allow addresses in each 256 bytes: all of them, or one.
const FREQUENT: [usize; 2] = [0, 1];

/// Where a detour is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Where the probe's jump leads.
    pub target: GuestVirtAddr,
    /// Where the code is. If that isn't the target, there is a springboard.
    pub code: GuestVirtAddr,
}

/// Which addresses are taken.
#[derive(Debug)]
pub struct Space {
    area: Range<u64>,
    /// What is free: from where to where.
    gaps: BTreeMap<u64, u64>,
    /// Where detours and springboards gather.
    homes: BTreeSet<u64>,
    springboards: BTreeSet<u64>,
    /// Where else springboards may be.
    boards: Range<u64>,
    /// Where a search may begin, for each of the frequent patterns: there was no room before that.
    searched: [u64; FREQUENT.len()],
}

impl Space {
    /// A space in which all of `area` is free.
    pub fn new(area: Range<GuestVirtAddr>) -> Self {
        let (start, end) = (area.start.0, area.end.0.max(area.start.0));
        Self {
            area: start..end,
            gaps: (start < end).then_some((start, end)).into_iter().collect(),
            homes: BTreeSet::new(),
            springboards: BTreeSet::new(),
            boards: 0..0,
            searched: [0; FREQUENT.len()],
        }
    }

    /// Lets springboards be in an area of their own as well, none of which is `area`. Only the first call counts.
    pub(super) fn add_boards(&mut self, boards: &Range<GuestVirtAddr>) {
        if self.boards.is_empty() && boards.start < boards.end {
            self.boards = boards.start.0..boards.end.0;
            self.gaps.insert(boards.start.0, boards.end.0);
        }
    }

    /// Takes room for a detour of `len` bytes that the jump at `at` leads to.
    pub fn place(&mut self, at: GuestVirtAddr, pattern: Pattern, len: usize) -> Option<Placement> {
        let range = self.in_reach(at);
        if pattern.span() > TIED
            && let Some(target) = self.code(at, pattern, len, &range)
        {
            self.take(target, len);
            let target = GuestVirtAddr(target);
            let code = target;
            return Some(Placement { target, code });
        }
        let boards = self.boards.clone();
        let target = self
            .springboard(at, pattern, &range)
            .or_else(|| self.springboard(at, pattern, &boards))?;
        self.take(target, JUMP_LEN);
        let Some(code) = self.code(at, Pattern::default(), len, &range) else {
            self.give(target, JUMP_LEN);
            return None;
        };
        self.take(code, len);
        Some(Placement {
            target: GuestVirtAddr(target),
            code: GuestVirtAddr(code),
        })
    }

    /// Gives the room back that [`Self::place`] has taken for `len` bytes.
    pub fn remove(&mut self, placement: Placement, len: usize) {
        self.undo(placement, len);
        for searched in &mut self.searched {
            *searched = placement.code.0.min(*searched);
        }
    }

    /// Does as [`Self::remove`], when nothing has been taken since.
    pub(super) fn undo(&mut self, placement: Placement, len: usize) {
        self.give(placement.code.0, len);
        if placement.target != placement.code {
            self.give(placement.target.0, JUMP_LEN);
        }
    }

    /// Returns where [`Self::place`] would put a detour now.
    pub fn fits(&mut self, at: GuestVirtAddr, pattern: Pattern, len: usize) -> Option<Placement> {
        let placement = self.place(at, pattern, len)?;
        self.undo(placement, len);
        Some(placement)
    }

    /// Gives back what is behind the first `used` bytes of `len`.
    pub(super) fn shorten(&mut self, code: GuestVirtAddr, len: usize, used: usize) {
        self.give(code.0.wrapping_add(used as u64), len - used.min(len));
    }

    /// Pages of 4 KiB of the area that aren't wholly free. Those of the springboards' own area don't count.
    pub fn pages(&self) -> u64 {
        let mut pages = self.area.end.div_ceil(PAGE_SIZE) - self.area.start / PAGE_SIZE;
        for (start, end) in self.gaps.range(self.area.clone()) {
            pages -= (end / PAGE_SIZE).saturating_sub(start.div_ceil(PAGE_SIZE));
        }
        pages
    }

    /// Where code can be that belongs to the jump at `at`.
    fn in_reach(&self, at: GuestVirtAddr) -> Range<u64> {
        let (below, above) = (REACH - MARGIN, REACH - 2 * MARGIN);
        let start = at.0.saturating_sub(below).max(self.area.start);
        start..at.0.saturating_add(above).min(self.area.end)
    }

    fn code(
        &mut self,
        at: GuestVirtAddr,
        pattern: Pattern,
        len: usize,
        range: &Range<u64>,
    ) -> Option<u64> {
        let home = home(&mut self.homes, range, START);
        let frequent = FREQUENT.iter().position(|it| *it == pattern.number());
        let searched = frequent.map_or(0, |number| self.searched[number]);
        let from = if range.contains(&searched) {
            searched.max(home)
        } else {
            home
        };
        let found = [from..range.end, range.start..range.end]
            .into_iter()
            .find_map(|range| self.find(at, pattern, len, range))?;
        if let Some(number) = frequent {
            self.searched[number] = found;
        }
        Some(found)
    }

    fn springboard(
        &mut self,
        at: GuestVirtAddr,
        pattern: Pattern,
        range: &Range<u64>,
    ) -> Option<u64> {
        let range = GuestVirtAddr(range.start)..GuestVirtAddr(range.end);
        let window = pattern.first(at, &range)?;
        let end = window.start.0.saturating_add(pattern.span());
        let range = window.start.0..end.min(range.end.0);
        let home = home(&mut self.springboards, &range, range.start);
        let found = self.find(at, pattern, JUMP_LEN, home..range.end);
        found.or_else(|| self.find(at, pattern, JUMP_LEN, range))
    }

    /// Finds the first free address in `range` that `at` can jump to, with `len` free bytes.
    fn find(
        &self,
        at: GuestVirtAddr,
        pattern: Pattern,
        len: usize,
        range: Range<u64>,
    ) -> Option<u64> {
        let mut from = range.start;
        loop {
            let window = pattern.first(at, &(GuestVirtAddr(from)..GuestVirtAddr(range.end)))?;
            let (start, end) = self.gap(window.start.0)?;
            let start = start.max(window.start.0);
            if start >= window.end.0 {
                from = start;
            } else if end - start >= len as u64 {
                return Some(start);
            } else {
                from = end;
            }
        }
    }

    /// Finds the gap that an address is in, or else the next.
    fn gap(&self, at: u64) -> Option<(u64, u64)> {
        let before = self.gaps.range(..=at).next_back();
        let here = before.filter(|(_, end)| **end > at);
        let gap = here.or_else(|| self.gaps.range(at..).next())?;
        Some((*gap.0, *gap.1))
    }

    /// Takes `len` bytes from `start` on. Both ends lie in one gap.
    fn take(&mut self, start: u64, len: usize) {
        let end = start + len as u64;
        let Some((gap_start, gap_end)) = self.gap(start) else {
            return;
        };
        self.gaps.remove(&gap_start);
        if gap_start < start {
            self.gaps.insert(gap_start, start);
        }
        if end < gap_end {
            self.gaps.insert(end, gap_end);
        }
    }

    fn give(&mut self, start: u64, len: usize) {
        let (mut start, mut end) = (start, start + len as u64);
        if start == end {
            return;
        }
        let before = self.gaps.range(..start).next_back();
        if let Some((gap, _)) = before.filter(|(_, end)| **end == start) {
            start = *gap;
        }
        if let Some(behind) = self.gaps.remove(&end) {
            end = behind;
        }
        self.gaps.insert(start, end);
    }
}

/// Returns the first of the homes in `range`; a new one if there is none, at `wanted` if that is possible.
fn home(homes: &mut BTreeSet<u64>, range: &Range<u64>, wanted: u64) -> u64 {
    if range.start >= range.end {
        return range.start;
    }
    if let Some(home) = homes.range(range.clone()).next() {
        return *home;
    }
    let new = match range.contains(&wanted) {
        true => wanted,
        false => range.start,
    };
    homes.insert(new);
    new
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arena::SLOT_AREA;

    const TEXT: u64 = 0xffff_ffff_8100_0000;

    /// A GiB but for the slots.
    fn area() -> Range<GuestVirtAddr> {
        GuestVirtAddr(0xffff_ffff_4000_0000)..SLOT_AREA.start
    }

    fn pattern(set: u8) -> Pattern {
        Pattern::at((1..=4).filter(|byte| set >> (byte - 1) & 1 == 1))
    }

    /// Numbers without a pattern that are the same each time (Knuth's MMIX generator).
    fn numbers(mut state: u64) -> impl Iterator<Item = u64> {
        std::iter::repeat_with(move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        })
    }

    fn is_whole(space: &Space) -> bool {
        space.gaps.iter().eq([(&space.area.start, &space.area.end)])
    }

    #[test]
    fn a_detour_is_where_its_jump_can_lead_or_has_a_springboard_there() {
        let at = GuestVirtAddr(TEXT + 0x1230);
        for set in 0..16 {
            let mut space = Space::new(area());
            let placed = space.place(at, pattern(set), 300).unwrap();
            assert!(pattern(set).jump(at, placed.target).is_some());
            assert_eq!(placed.target == placed.code, set & 0b1000 == 0, "{set}");
            space.remove(placed, 300);
            assert!(is_whole(&space));
        }
    }

    #[test]
    fn a_springboard_leads_to_a_detour_that_has_no_room_where_the_jump_reaches() {
        let at = GuestVirtAddr(TEXT);
        let pattern = pattern(0b0111);
        let all: Vec<_> = pattern.windows(at, area()).collect();
        let mut space = Space::new(area());
        for window in &all {
            space.take(window.start.0 + 20, 1);
        }
        let placed = space.place(at, pattern, 300).unwrap();
        assert!(all.iter().any(|window| window.start == placed.target));
        assert_ne!(placed.target, placed.code);
    }

    #[test]
    fn a_single_address_that_is_taken_is_no_address() {
        let at = GuestVirtAddr(TEXT);
        let mut space = Space::new(area());
        let first = space.place(at, pattern(15), 100);
        assert!(first.is_some());
        let before = space.gaps.clone();
        assert_eq!(space.place(at, pattern(15), 100), None);
        assert_eq!(space.gaps, before);
    }

    #[test]
    fn a_jump_that_reaches_no_free_address_gets_none() {
        let mut space = Space::new(area());
        let at = |at: u64| GuestVirtAddr(at);
        for (from, set, fits) in [
            (0xffff_ffff_c000_0000, 0, true),
            (0xffff_ffff_c000_0000, 0b1000, false),
            (0xffff_ffff_ff00_0000, 0, false),
            (0x1000, 0, false),
        ] {
            let found = space.fits(at(from), pattern(set), 100);
            assert_eq!(found.is_some(), fits, "{from:#x}");
        }
        let empty = SLOT_AREA.start..SLOT_AREA.start;
        assert_eq!(Space::new(empty).fits(at(TEXT), pattern(0), 100), None);
    }

    #[test]
    fn ten_thousand_of_all_patterns_lie_close_together() {
        let mut space = Space::new(area());
        let mut numbers = numbers(1);
        let mut next = || numbers.next().unwrap();
        let mut bytes = 0;
        let mut refused = 0;
        for i in 0..10_000 {
            let (set, len) = (next() % 8, 80 + next() % 200);
            let at = GuestVirtAddr(TEXT + i * 0x600 + next() % 0x600);
            match space.place(at, pattern(set as u8), len as usize) {
                Some(_) => bytes += len,
                None => refused += 1,
            }
        }
        assert_eq!(refused, 0);
        let (pages, least) = (space.pages(), bytes.div_ceil(PAGE_SIZE));
        assert!(pages < 8 * least, "{pages} pages for {least}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn nothing_overlaps_and_all_comes_back(
            asked in proptest::collection::vec((0u64..0x4000, 0u8..16, 5usize..700, any::<bool>()), 1..200),
        ) {
            let mut space = Space::new(area());
            let mut there: Vec<(Placement, usize)> = Vec::new();
            for (offset, set, len, goes) in asked {
                let at = GuestVirtAddr(TEXT + offset);
                let Some(placed) = space.place(at, pattern(set), len) else {
                    continue;
                };
                prop_assert!(pattern(set).jump(at, placed.target).is_some());
                there.push((placed, len));
                if goes {
                    let (placed, len) = there.swap_remove(there.len() / 2);
                    space.remove(placed, len);
                }
            }
            let mut taken: Vec<_> = there
                .iter()
                .flat_map(|(placed, len)| {
                    let springboard = (placed.target != placed.code).then_some((placed.target, 5));
                    springboard.into_iter().chain([(placed.code, *len)])
                })
                .collect();
            taken.sort_unstable();
            for pair in taken.windows(2) {
                prop_assert!(pair[0].0.0 + pair[0].1 as u64 <= pair[1].0.0);
            }
            let free: u64 = space.gaps.iter().map(|(start, end)| end - start).sum();
            let used: usize = taken.iter().map(|(_, len)| len).sum();
            prop_assert_eq!(free + used as u64, space.area.end - space.area.start);
            for (placed, len) in there {
                space.remove(placed, len);
            }
            prop_assert!(is_whole(&space));
        }
    }
}
