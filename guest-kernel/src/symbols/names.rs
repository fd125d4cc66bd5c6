//! kallsyms' names: `num_syms`, the names and their markers, as `kallsyms.rs` describes them.

use super::table::{SymbolEntry, SymbolTable};
use super::tokens::Tokens;
use crate::image::LoadSegment;

/// Names between two markers.
const MARKER_STEP: usize = 256;
/// Bytes of a sequence number.
const SEQUENCE_LEN: usize = 3;
/// The longest name that is taken for one, in bytes; the kernel's limit is 512.
const MAX_NAME: usize = 1024;
/// The most text that all names may add up to, in bytes. A kernel has about 5 MiB.
const MAX_TEXT: usize = 256 << 20;

/// The tables before the dictionary: `num_syms`, names and markers.
pub struct NameTable {
    /// How many symbols there are.
    pub count: usize,
    /// Where `num_syms` is, in bytes from the start of the segment.
    pub start: usize,
    /// Where the names are.
    names: usize,
    /// What the tables are aligned to, in bytes.
    pub align: usize,
}

impl NameTable {
    /// Checks whether `num_syms` can be at `start`: the names must end where markers that fit
    /// them begin, and the markers (or sequence numbers) where `data` ends: at the dictionary.
    pub fn at(data: &[u8], start: usize, align: usize, budget: &mut usize) -> Option<Self> {
        let names = start + align;
        let (count, padding) = data.get(start..names)?.split_first_chunk::<4>()?;
        if padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        let count = u32::from_le_bytes(*count) as usize;
        let markers_len = count.div_ceil(MARKER_STEP) * 4;
        // A name takes at least its length and one code.
        if count == 0 || count.saturating_mul(2) + markers_len > data.len() - names {
            return None;
        }
        let mut at = names;
        let mut offsets = Vec::new();
        for i in 0..count {
            if i % MARKER_STEP == 0 {
                offsets.push(at - names);
                *budget = budget.saturating_sub(MARKER_STEP);
            }
            let (codes, len) = code_len(data, at)?;
            at = codes + len;
            if len == 0 || at > data.len() {
                return None;
            }
        }
        let markers = at.next_multiple_of(align);
        let markers_end = (markers + markers_len).next_multiple_of(align);
        let sequences_end = (markers_end + count * SEQUENCE_LEN).next_multiple_of(align);
        let fits = data
            .get(markers..markers + markers_len)?
            .as_chunks::<4>()
            .0
            .iter()
            .map(|marker| u32::from_le_bytes(*marker) as usize)
            .eq(offsets);
        (fits && (data.len() == markers_end || data.len() == sequences_end)).then_some(Self {
            count,
            start,
            names,
            align,
        })
    }

    /// Decodes all names; the addresses are left at 0.
    pub fn decode(&self, segment: &LoadSegment<'_>, tokens: &Tokens<'_>) -> Option<SymbolTable> {
        let mut table = SymbolTable::with_capacity(self.count);
        let mut at = self.names;
        for _ in 0..self.count {
            let (codes, len) = code_len(segment.data, at)?;
            at = codes + len;
            let begin = table.text.len();
            for code in segment.data.get(codes..at)? {
                table.text.push_str(tokens.text(*code));
                if table.text.len() - begin > MAX_NAME {
                    return None;
                }
            }
            let kind = *table.text.as_bytes().get(begin)?;
            let name = begin + 1;
            if !is_kind(kind) || name == table.text.len() || name > MAX_TEXT {
                return None;
            }
            let len = (table.text.len() - name) as u16;
            table.entries.push(SymbolEntry {
                address: 0,
                name: name as u32,
                len,
                kind,
            });
        }
        Some(table)
    }
}

/// Returns true for what `nm` prints as a symbol's type: a letter, or `?` for a symbol of a section that it can't name,
/// such as the empty `.data_nosave` of a kernel without hibernation.
fn is_kind(kind: u8) -> bool {
    kind.is_ascii_alphabetic() || kind == b'?'
}

/// Returns where the codes of the name at `at` begin, and how many bytes they are. Two bytes of length came with Linux
/// 6.1; before, no length had bit 7 set.
fn code_len(data: &[u8], at: usize) -> Option<(usize, usize)> {
    let low = usize::from(*data.get(at)?);
    if low & 0x80 == 0 {
        return Some((at + 1, low));
    }
    let high = usize::from(*data.get(at + 1)?);
    Some((at + 2, low & 0x7f | high << 7))
}
