//! What can't be probed, and why, from the kernel's own tables.
//!
//! The kernel keeps tables of the instructions that it patches itself, and lists of the code in
//! which it allows no kprobe. They are read from the image, not from guest memory: the guest frees
//! most of them when it has started, and could have changed them before.

use std::ops::Range;

use guest_state::GuestVirtAddr;
use thiserror::Error;

mod exceptions;
pub(crate) mod format;
mod landings;
mod patched;
mod reason;
mod tables;
#[cfg(test)]
mod tests;

pub use exceptions::ExceptionTable;
pub use landings::Landings;
pub use reason::{Patched, Reason};
pub use tables::ImageTables;
pub(crate) use tables::targets;

/// Why a kernel's tables can't be read.
#[derive(Debug, Error)]
pub enum BlacklistError {
    /// A table's bounds aren't in the image.
    #[error(
        "the kernel's table {table} ({start} to {end}) is not in its image; check that the file \
         is whole"
    )]
    Outside {
        /// The table.
        table: String,
        /// Where it should begin.
        start: GuestVirtAddr,
        /// Where it should end.
        end: GuestVirtAddr,
    },
    /// A table ends in the middle of an entry.
    #[error(
        "the kernel's table {table} has {len} bytes, which is no multiple of {entry}; report the \
         kernel's version"
    )]
    Uneven {
        /// The table.
        table: String,
        /// Its length in bytes.
        len: usize,
        /// The length that an entry was taken to have, in bytes.
        entry: usize,
    },
    /// An entry names a place that is no code.
    #[error(
        "entry {entry} of the kernel's table {table} names {address}, where no instruction is; \
         report the kernel's version"
    )]
    NotCode {
        /// The table.
        table: String,
        /// The entry, from 0.
        entry: usize,
        /// What it names.
        address: GuestVirtAddr,
    },
    /// The places are too far apart.
    #[error("the places in the kernel's tables span {span:#x} bytes; check that the file is whole")]
    TooFar {
        /// From the first to the last.
        span: u64,
    },
}

/// A place that can't be probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlacklistEntry {
    /// The bytes that nothing may be written to.
    pub range: Range<GuestVirtAddr>,
    /// Why.
    pub reason: Reason,
}

/// All places that can't be probed. Takes 16 bytes a place.
#[derive(Debug, Clone, Default)]
pub struct Blacklist {
    /// Where the first place begins.
    base: GuestVirtAddr,
    /// Sorted by start and reason.
    places: Vec<ListedRange>,
}

/// A place, in bytes from the base.
#[derive(Debug, Clone, Copy)]
struct ListedRange {
    start: u32,
    end: u32,
    /// The largest end of this and all places before it: it grows, so it can be searched.
    reach: u32,
    reason: Reason,
}

impl Blacklist {
    /// Makes a list of these places, in any order.
    ///
    /// # Errors
    /// They are more than 4 GiB apart.
    pub fn new(mut entries: Vec<BlacklistEntry>) -> Result<Self, BlacklistError> {
        entries.retain(|entry| entry.range.start < entry.range.end);
        // Most of the kernel's tables are sorted already, each by itself: this sort makes use of
        // that.
        entries.sort_by_key(|entry| (entry.range.start, entry.reason, entry.range.end));
        entries.dedup();
        let base = entries.first().map_or(GuestVirtAddr(0), |e| e.range.start);
        let mut reach = 0;
        let mut places = Vec::with_capacity(entries.len());
        for BlacklistEntry { range, reason } in entries {
            let from_base = |address: GuestVirtAddr| {
                let span = address.0.wrapping_sub(base.0);
                u32::try_from(span).map_err(|_| BlacklistError::TooFar { span })
            };
            let (start, end) = (from_base(range.start)?, from_base(range.end)?);
            reach = reach.max(end);
            places.push(ListedRange {
                start,
                end,
                reach,
                reason,
            });
        }
        Ok(Self { base, places })
    }

    /// Returns the first place that overlaps a range of bytes.
    pub fn find(&self, range: Range<GuestVirtAddr>) -> Option<BlacklistEntry> {
        self.overlapping(range).next()
    }

    /// Returns all places that overlap a range of bytes, in order.
    pub fn overlapping(&self, range: Range<GuestVirtAddr>) -> impl Iterator<Item = BlacklistEntry> {
        let from_base = |address: GuestVirtAddr| address.0.saturating_sub(self.base.0);
        let (start, end) = (from_base(range.start), from_base(range.end));
        let first = self
            .places
            .partition_point(|place| u64::from(place.reach) <= start);
        self.places[first..]
            .iter()
            .take_while(move |place| u64::from(place.start) < end)
            .filter(move |place| u64::from(place.end) > start && start < end)
            .map(|place| self.entry(place))
    }

    /// Returns the instruction that ftrace patches in these bytes, such as those of a function's
    /// entry.
    pub fn ftrace_site(&self, range: Range<GuestVirtAddr>) -> Option<Range<GuestVirtAddr>> {
        let site = self
            .overlapping(range)
            .find(|entry| entry.reason == Reason::FtraceSite)?;
        Some(site.range)
    }

    /// All places, in the order of their addresses. They may overlap.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = BlacklistEntry> {
        self.places.iter().map(|place| self.entry(place))
    }

    /// How many places there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn entry(&self, place: &ListedRange) -> BlacklistEntry {
        let address = |offset: u32| self.base.wrapping_add(u64::from(offset));
        BlacklistEntry {
            range: address(place.start)..address(place.end),
            reason: place.reason,
        }
    }
}
