//! Where the guest's kernel allows no kprobe, by its own `/sys/kernel/debug/kprobes/blacklist`.

use super::guest::Guest;
use crate::test::{Failure, check, wrong};

/// The list.
#[derive(Debug)]
pub struct OwnList {
    /// The start and the end of each range, in ascending order; adjacent ranges are merged.
    pub ranges: Vec<(u64, u64)>,
}

impl OwnList {
    /// Reads the guest's list.
    ///
    /// # Errors
    /// If the guest can't read it.
    pub async fn of(guest: &mut Guest) -> Result<Self, Failure> {
        let own = guest.work("blacklist").await?;
        let text = own["ranges"].as_str().unwrap_or_default();
        let ranges: Option<Vec<(u64, u64)>> = text.split_whitespace().map(range).collect();
        let ranges = ranges.ok_or_else(|| wrong!("odd ranges: {own}"))?;
        check!(
            ranges.len() > 10,
            "the guest's own list is too short: {own}"
        );
        Ok(Self { ranges })
    }

    /// Returns true if an address is on it.
    pub fn has(&self, address: u64) -> bool {
        let before = self.ranges.partition_point(|(start, _)| *start <= address);
        let last = before.checked_sub(1).map(|last| self.ranges[last]);
        last.is_some_and(|(_, end)| address < end)
    }

    /// Returns true if the kernel allows no kprobe at `address`. A function that the compiler has split off from one on
    /// the list belongs to it, though the list doesn't show it (`within_kprobe_blacklist` in `kernel/kprobes.c`).
    /// `base` is the address of the function whose name goes up to the first dot.
    pub fn forbids(&self, address: u64, base: Option<u64>) -> bool {
        self.has(address) || base.is_some_and(|base| self.has(base))
    }
}

/// Parses `ffffffff81000000-ffffffff81000010`.
fn range(text: &str) -> Option<(u64, u64)> {
    let (start, end) = text.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_listed_function_is_forbidden_too() {
        let list = OwnList {
            ranges: vec![(0x10, 0x20), (0x40, 0x50)],
        };
        for (address, has) in [(0xf, false), (0x10, true), (0x1f, true), (0x20, false)] {
            assert_eq!(list.has(address), has, "{address:#x}");
        }
        assert!(list.forbids(0x90, Some(0x40)));
        assert!(!list.forbids(0x90, Some(0x30)));
        assert!(!list.forbids(0x90, None));
        assert_eq!(range("ff-1ff"), Some((0xff, 0x1ff)));
        assert_eq!(range("ff"), None);
    }
}
