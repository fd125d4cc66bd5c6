//! Jumps that have int3s in their middle, for tasks that come to an instruction boundary there.
//!
//! The four bytes of a jump's displacement lie where instructions of the region began. The bytes at such a boundary
//! have to be 0xCC, so only some addresses can be jumped to (instruction punning: Chamith et al., PLDI 2017; `E9Patch`,
//! PLDI 2020).

use std::ops::Range;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::jmp_rel32;

use super::region::{JUMP_LEN, Region};

/// The bits of four int3s (SDM vol. 2, INT3).
const WIRES: u32 = 0xcccc_cccc;
/// The sign of a displacement. With it inverted, displacements as unsigned numbers are in the order of the addresses.
const SIGN: u32 = 1 << 31;

/// Which bytes of a jump's displacement have to be 0xCC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Pattern {
    /// All bits of these bytes.
    mask: u32,
}

impl Pattern {
    /// The pattern of a jump over a region.
    pub fn of(region: &Region) -> Self {
        Self::at(region.interior())
    }

    /// The pattern of a jump with instruction boundaries at these bytes of it, of which 1 to 4 count.
    pub fn at(boundaries: impl IntoIterator<Item = u8>) -> Self {
        let byte = |at: u8| match at {
            1..=4 => 0xff << (8 * (at - 1)),
            _ => 0,
        };
        Self {
            mask: boundaries.into_iter().fold(0, |mask, at| mask | byte(at)),
        }
    }

    /// The length of the range in which all targets of one jump lie. It is short if the uppermost bytes are fixed.
    pub fn span(self) -> u64 {
        1 << (u32::BITS - self.mask.leading_ones())
    }

    /// A number below 16 that tells which bytes are fixed.
    pub fn number(self) -> usize {
        (0..4)
            .filter(|byte| self.mask >> (8 * byte) & 1 != 0)
            .map(|byte| 1 << byte)
            .sum()
    }

    /// Returns the jump from `at` to `target`, if that is in reach and its bytes are as they have to be.
    pub fn jump(self, at: GuestVirtAddr, target: GuestVirtAddr) -> Option<[u8; JUMP_LEN]> {
        let jump = jmp_rel32(at, target)?;
        let [_, displacement @ ..] = jump;
        let by = u32::from_le_bytes(displacement);
        (by & self.mask == WIRES & self.mask).then_some(jump)
    }

    /// Returns the first run of addresses in `range` that a jump from `at` can lead to: it can lead to each address of
    /// the run, and to none before it. `at` is in the upper half of addresses, as all of a kernel's are.
    pub fn first(
        self,
        at: GuestVirtAddr,
        range: &Range<GuestVirtAddr>,
    ) -> Option<Range<GuestVirtAddr>> {
        let zero = i128::from(next(at)) - i128::from(SIGN);
        let start = (i128::from(range.start.0) - zero).max(0);
        let end = (i128::from(range.end.0) - zero).min(1 << u32::BITS);
        if start >= end {
            return None;
        }
        let first = self.matching(u32::try_from(start).ok()?)?;
        let run = match self.mask {
            0 => 1 << u32::BITS,
            mask => 1 << mask.trailing_zeros(),
        };
        let stop = (i128::from(first) / run + 1) * run;
        let stop = stop.min(end);
        let address = |by: i128| u64::try_from(zero + by).ok().map(GuestVirtAddr);
        (i128::from(first) < stop).then_some(address(first.into())?..address(stop)?)
    }

    /// Returns all runs of addresses in `range` that a jump from `at` can lead to, rising.
    pub fn windows(
        self,
        at: GuestVirtAddr,
        range: Range<GuestVirtAddr>,
    ) -> impl Iterator<Item = Range<GuestVirtAddr>> {
        let mut rest = range;
        std::iter::from_fn(move || {
            let found = self.first(at, &rest)?;
            rest.start = found.end;
            Some(found)
        })
    }

    /// Returns the smallest displacement, not below `from`, that has the required bytes. Both numbers have their sign
    /// inverted.
    fn matching(self, from: u32) -> Option<u32> {
        let value = (WIRES ^ SIGN) & self.mask;
        let wrong = (from ^ value) & self.mask;
        if wrong == 0 {
            return Some(from);
        }
        let highest = 31 - wrong.leading_zeros();
        let kept = if value >> highest & 1 == 1 {
            // With that bit raised, everything below may be as small as it can be.
            above(highest)
        } else {
            // It has to be raised further up, at the lowest free bit that isn't set.
            let raised = !self.mask & !from & above(highest);
            if raised == 0 {
                return None;
            }
            let raised = raised.trailing_zeros();
            return Some((from & above(raised) | 1 << raised) & !self.mask | value);
        };
        Some(from & kept & !self.mask | value)
    }
}

/// All bits above `bit`.
const fn above(bit: u32) -> u32 {
    !(u32::MAX >> (31 - bit))
}

/// The address that a displacement counts from.
const fn next(at: GuestVirtAddr) -> u64 {
    at.0.wrapping_add(JUMP_LEN as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use guest_state::x86_64::{INT3, JMP_REL32};

    use super::*;

    const AT: GuestVirtAddr = GuestVirtAddr(0xffff_ffff_8123_4560);
    const HOLE: Range<GuestVirtAddr> =
        GuestVirtAddr(0xffff_ffff_4000_0000)..GuestVirtAddr(0xffff_ffff_7f80_0000);

    #[test]
    fn boundaries_in_the_displacement_are_int3s() {
        let region = Region {
            start: AT,
            bytes: vec![0x41, 0x55, 0x49, 0x89, 0xf5],
            starts: vec![0, 2],
            end: 5,
            beyond: vec![],
        };
        let pattern = Pattern::of(&region);
        let target = pattern.first(AT, &HOLE).unwrap().start;
        let jump = pattern.jump(AT, target).unwrap();
        assert_eq!((jump[0], jump[2]), (JMP_REL32, INT3));
        assert_eq!(pattern.jump(AT, target.wrapping_add(0x100)), None);
    }

    #[test]
    fn windows_are_as_long_as_the_free_low_bytes_allow() {
        let count = |boundaries: &[u8]| {
            let pattern = Pattern::at(boundaries.iter().copied());
            let windows: Vec<_> = pattern.windows(AT, HOLE).collect();
            let longest = windows.iter().map(|it| it.end.0 - it.start.0).max();
            (windows.len(), longest.unwrap_or(0))
        };
        assert_eq!(count(&[]), (1, HOLE.end.0 - HOLE.start.0));
        assert_eq!(count(&[0, 5, 9]), count(&[]));
        assert_eq!(count(&[4]), (1, 1 << 24));
        assert_eq!(count(&[3, 4]), (1, 1 << 16));
        assert_eq!(count(&[2, 3, 4]), (1, 1 << 8));
        assert_eq!(count(&[1, 2, 3, 4]), (1, 1));
        assert_eq!(count(&[1, 4]), (1 << 16, 1));
        assert_eq!(count(&[2]), (0x3f80, 1 << 8));
        let span = |boundaries: &[u8]| Pattern::at(boundaries.iter().copied()).span();
        assert_eq!(
            [&[][..], &[1, 2, 3], &[4], &[1, 3, 4], &[1, 2, 3, 4]].map(span),
            [1 << 32, 1 << 32, 1 << 24, 1 << 16, 1]
        );
    }

    #[test]
    fn a_module_out_of_reach_has_no_window() {
        let module = GuestVirtAddr(0xffff_ffff_c000_0000);
        assert_eq!(Pattern::at([4]).first(module, &HOLE), None);
        assert!(Pattern::at([1, 2, 3]).first(module, &HOLE).is_some());
    }

    /// Returns true if the jump has the pattern's bytes, by the definition.
    fn fits(pattern: Pattern, at: u64, target: u64) -> bool {
        let by = i128::from(target) - i128::from(at) - 5;
        let Ok(by) = i32::try_from(by) else {
            return false;
        };
        let wired = |(i, byte): (usize, &u8)| pattern.number() >> i & 1 == 0 || *byte == INT3;
        by.to_le_bytes().iter().enumerate().all(wired)
    }

    fn patterns() -> impl Strategy<Value = Pattern> {
        (0u8..16).prop_map(|set| Pattern::at((1..=4).filter(|i| set >> (i - 1) & 1 == 1)))
    }

    proptest! {
        #[test]
        fn each_address_of_a_short_range_is_in_a_window_if_and_only_if_it_fits(
            pattern in patterns(),
            at in 0xffff_ffff_8000_0000u64..0xffff_ffff_ff00_0000,
            near in prop_oneof![
                Just(0xcccc_cccc_u32), Just(0xcccc_0000), Just(0xcc00_00cc), Just(0x00cc_cc00),
                Just(0x8000_0000), Just(0x7fff_ffff), Just(0), any::<u32>(),
            ],
            before in 0u64..700,
            len in 0u64..1400,
        ) {
            let middle = at.wrapping_add(5).wrapping_add_signed(i64::from(near.cast_signed()));
            prop_assume!(middle > 0xffff_fffe_0000_0000);
            let start = middle - before;
            let end = start.saturating_add(len);
            let range = GuestVirtAddr(start)..GuestVirtAddr(end);
            let windows: Vec<_> = pattern.windows(GuestVirtAddr(at), range).collect();
            for pair in windows.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            for target in start..end {
                let found = windows.iter().any(|it| it.contains(&GuestVirtAddr(target)));
                prop_assert_eq!(found, fits(pattern, at, target), "{:#x}", target);
                let jump = pattern.jump(GuestVirtAddr(at), GuestVirtAddr(target));
                prop_assert_eq!(jump.is_some(), found);
            }
        }

        #[test]
        fn the_next_displacement_is_the_smallest_that_matches(
            pattern in patterns(),
            from in any::<u32>(),
        ) {
            let matches = |by: u32| (by ^ WIRES ^ SIGN) & pattern.mask == 0;
            match pattern.matching(from) {
                Some(found) => {
                    prop_assert!(found >= from && matches(found));
                    // Whatever lies between differs in its upper bytes at most by what is given.
                    let between = (from..found).rev().take(1 << 17);
                    prop_assert!(between.into_iter().all(|by| !matches(by)));
                }
                None => prop_assert!((from..=u32::MAX).rev().take(1 << 17).all(|by| !matches(by))),
            }
        }
    }
}
