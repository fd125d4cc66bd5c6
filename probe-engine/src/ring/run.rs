//! Records, one after the other, in bytes that the guest may have written anything into.

use std::ops::RangeInclusive;

use super::layout;

/// Words of a hit's record.
const WORDS: RangeInclusive<usize> =
    layout::RECORD_VALUES as usize / 8..=layout::WORDS_MAX as usize;
/// Words of a return's record.
const RETURN_WORDS: RangeInclusive<usize> =
    layout::RETURN_WORDS as usize..=layout::WORDS_MAX as usize;

/// What follows the records of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// Nothing, or the beginning of a record.
    Cut,
    /// A record that isn't whole yet.
    Open,
    /// No record.
    Bad,
}

/// Goes through records up to the first that isn't whole, or that `each` doesn't take. Those that the host has taken
/// before are passed over. Returns how many bytes they have together, and what follows. `each` is told how many bytes
/// from the start the record is.
pub fn walk(
    bytes: &[u8],
    mut each: impl FnMut(usize, RecordHeader, &[[u8; 8]]) -> bool,
) -> (usize, RunEnd) {
    let (words, _) = bytes.as_chunks();
    let mut at = 0;
    let end = loop {
        let rest = words.get(at..).unwrap_or_default();
        let Some(header) = rest.first().map(|word| u64::from_le_bytes(*word)) else {
            break RunEnd::Cut;
        };
        if header == 0 {
            break RunEnd::Open;
        }
        let Some((stage, header, len)) = RecordHeader::read(header) else {
            break RunEnd::Bad;
        };
        if stage == Stage::Open {
            break RunEnd::Open;
        }
        let Some(record) = rest.get(..len) else {
            break RunEnd::Cut;
        };
        if stage == Stage::Whole && !each(at * 8, header, record) {
            break RunEnd::Bad;
        }
        at += len;
    };
    (at * 8, end)
}

/// What a record's first word tells, besides its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The detour's number.
    pub detour: u32,
    /// It is of a call that has returned.
    pub returns: bool,
}

/// How far a record has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It is being written.
    Open,
    /// It waits for the host.
    Whole,
    /// The host has taken it.
    Taken,
}

impl RecordHeader {
    /// Reads a record's first word: how far the record has come, the header, and the record's
    /// length in words.
    pub(super) fn read(word: u64) -> Option<(Stage, Self, usize)> {
        let (detour, len) = (word as u32, (word >> 32) as u8);
        let stage = match word >> 48 {
            layout::OPEN => Stage::Open,
            layout::MAGIC => Stage::Whole,
            layout::TAKEN => Stage::Taken,
            _ => return None,
        };
        let word = layout::with_magic(word, layout::MAGIC);
        let words = usize::from(len);
        let returns = word == layout::return_header(detour, len);
        let lengths = if returns { RETURN_WORDS } else { WORDS };
        // A record that was given up may be of any length.
        let is_length = lengths.contains(&words) || stage == Stage::Taken && words > 0;
        let is_one = returns || word == layout::header(detour, len);
        (is_one && is_length).then_some((stage, Self { detour, returns }, words))
    }
}
