//! The kernel's jump labels: what the kernel's own table and static keys require of its text.

use std::collections::BTreeMap;

use super::guest::Guest;
use crate::test::{Failure, check, wrong};

/// Bytes of an entry of the table: two distances of 32 bits and one of 64, each relative to its own address (`struct
/// jump_entry` in `include/linux/jump_label.h`).
const ENTRY: usize = 16;
/// Bits of the key's distance that are flags: the label is a jump while the key is off; and the label is in init text.
const BRANCH: i64 = 1;
const FLAGS: i64 = 3;

/// A jump or nop that the kernel exchanges when a static key is switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Where the jump leads.
    target: u64,
    /// Its key, which begins with its count.
    key: u64,
    /// True if the label is a jump while the key is off.
    branch: bool,
}

impl Label {
    /// Returns all labels, by their addresses.
    ///
    /// # Errors
    /// If the table can't be read.
    pub async fn all(guest: &Guest) -> Result<BTreeMap<u64, Self>, Failure> {
        let start = guest.symbol("__start___jump_table").await?;
        let end = guest.symbol("__stop___jump_table").await?;
        let table = guest.memory(start, (end - start) as usize).await?;
        let entries = table.as_chunks::<ENTRY>().0.iter();
        let addresses = (start..).step_by(ENTRY);
        Ok(addresses
            .zip(entries)
            .map(|(at, entry)| Self::read(at, entry))
            .collect())
    }

    /// Reads the entry at an address. Returns where the label is, and the label.
    fn read(at: u64, entry: &[u8; ENTRY]) -> (u64, Self) {
        let [a, b, c, d, e, f, g, h, key @ ..] = *entry;
        let near = |field: u64, distance: [u8; 4]| {
            (at + field).wrapping_add_signed(i32::from_le_bytes(distance).into())
        };
        let distance = i64::from_le_bytes(key);
        let label = Self {
            target: near(4, [e, f, g, h]),
            key: (at + 8).wrapping_add_signed(distance & !FLAGS),
            branch: distance & BRANCH != 0,
        };
        (near(0, [a, b, c, d]), label)
    }

    /// Fails unless the bytes of the label at an address are what its key requires now.
    ///
    /// # Errors
    /// As said.
    pub async fn check(&self, guest: &Guest, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let count = guest.memory(self.key, 4).await?;
        // A negative count means that the key is being switched on (`static_key_count`).
        let is_on = count.iter().any(|byte| *byte != 0);
        let wanted = self.instruction(at, is_on, bytes.len());
        let wanted = wanted.ok_or_else(|| wrong!("a jump label of {} bytes", bytes.len()))?;
        check!(
            bytes == wanted,
            "the jump label at {at:#x} is {bytes:02x?}, but its key, which is on: {is_on}, wants {wanted:02x?}"
        );
        Ok(())
    }

    /// Returns the nop or jump of `length` bytes (`arch/x86/kernel/jump_label.c`).
    fn instruction(&self, at: u64, is_on: bool, length: usize) -> Option<Vec<u8>> {
        let distance = self.target.wrapping_sub(at + length as u64).cast_signed();
        let is_jump = is_on != self.branch;
        match length {
            2 if is_jump => Some(vec![0xeb, i8::try_from(distance).ok()?.cast_unsigned()]),
            2 => Some(vec![0x66, 0x90]),
            5 if is_jump => {
                let distance = i32::try_from(distance).ok()?.to_le_bytes();
                Some([&[0xe9], &distance[..]].concat())
            }
            5 => Some(vec![0x0f, 0x1f, 0x44, 0x00, 0x00]),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_distances_from_its_own_fields() {
        let mut entry = [0; ENTRY];
        entry[..4].copy_from_slice(&(-0x1000_i32).to_le_bytes());
        entry[4..8].copy_from_slice(&(-0x0ff4_i32).to_le_bytes());
        entry[8..].copy_from_slice(&(0x201_i64).to_le_bytes());
        let (at, label) = Label::read(0x8000, &entry);
        let expected = Label {
            target: 0x7010,
            key: 0x8208,
            branch: true,
        };
        assert_eq!((at, label), (0x7000, expected));
    }

    #[test]
    fn a_label_is_a_jump_or_a_nop_by_its_key() {
        let label = |branch| Label {
            target: 0x1010,
            key: 0,
            branch,
        };
        let near = Some(vec![0xeb, 0x0e]);
        let far = Some(vec![0xe9, 0x0b, 0, 0, 0]);
        assert_eq!(label(false).instruction(0x1000, true, 2), near);
        assert_eq!(label(true).instruction(0x1000, false, 5), far);
        let nop = Some(vec![0x66, 0x90]);
        assert_eq!(label(false).instruction(0x1000, false, 2), nop);
        assert_eq!(label(true).instruction(0x1000, true, 2), nop);
        assert_eq!(label(true).instruction(0x1000, true, 3), None);
    }
}
