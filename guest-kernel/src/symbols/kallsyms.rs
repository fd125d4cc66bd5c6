//! The symbol table that a Linux kernel carries inside its image (`CONFIG_KALLSYMS`).
//!
//! Nothing says where it is: it is found by its structure. Source: Linux `scripts/kallsyms.c`,
//! `write_src()`; the last line from Debian's 7.2 kernel itself. All tables are in `.rodata`:
//!
//! | Linux | order of the tables | aligned to |
//! | --- | --- | --- |
//! | up to 6.3 | addresses, `num_syms`, names, markers, (6.2, 6.3: sequence numbers), tokens | 8 |
//! | from 6.4 | `num_syms`, names, markers, tokens, addresses, sequence numbers | 8 |
//! | 7.2 | the same | 4 |
//!
//! *Names*: for each symbol the length of its code in bytes (one byte, or two when the first has
//! bit 7 set, then 7 low bits first), then that many codes of the dictionary in `tokens.rs`; the
//! first character of the text is the symbol's type, as `nm` prints it. *Markers*: the offset
//! (u32) of every 256th name. *Addresses*: see `addresses.rs`.

use super::image::{Image, Segment};
use super::tokens::Tokens;
use super::{Entry, Table, addresses};

/// What the tables can be aligned to, in bytes.
const ALIGNMENTS: [usize; 2] = [8, 4];
/// Names between two markers.
const MARKER_STEP: usize = 256;
/// Bytes of a sequence number.
const SEQUENCE_LEN: usize = 3;
/// The longest name that is taken for one, in bytes; the kernel's limit is 512.
const MAX_NAME: usize = 1024;
/// The most text that all names may add up to, in bytes. A kernel has about 5 MiB.
const MAX_TEXT: usize = 256 << 20;
/// How many places, names and bytes of text the search may look at, so that no file can make it
/// endless. A kernel needs about a tenth.
const SEARCH_BUDGET: usize = 1 << 27;

/// What the search came to.
pub enum Found {
    /// A symbol table, sorted by address.
    Table(Table),
    /// The names of that many symbols, but not their addresses.
    NamesOnly(usize),
    /// Nothing.
    Nothing,
}

/// Looks for kallsyms' tables in a vmlinux.
pub fn find(image: &Image<'_>) -> Found {
    let mut search = Search {
        image,
        budget: SEARCH_BUDGET,
        names_only: 0,
    };
    for segment in &image.segments {
        for tokens in Tokens::find_all(segment.data) {
            for align in ALIGNMENTS {
                if let Some(table) = search.before(segment, &tokens, align) {
                    return Found::Table(table);
                }
            }
        }
    }
    if search.names_only == 0 {
        Found::Nothing
    } else {
        Found::NamesOnly(search.names_only)
    }
}

struct Search<'a> {
    image: &'a Image<'a>,
    budget: usize,
    names_only: usize,
}

impl Search<'_> {
    /// Looks for the other tables of a dictionary, backwards from it.
    fn before(
        &mut self,
        segment: &Segment<'_>,
        tokens: &Tokens<'_>,
        align: usize,
    ) -> Option<Table> {
        // Segments begin at a page, so an offset is aligned as its address is.
        let data = segment.data.get(..tokens.start)?;
        for at in (0..data.len()).step_by(align).rev() {
            self.budget = self.budget.checked_sub(1)?;
            let Some(names) = Names::at(data, at, align, &mut self.budget) else {
                continue;
            };
            let Some(mut table) = names.decode(segment, tokens) else {
                continue;
            };
            self.budget = self.budget.saturating_sub(table.text.len());
            if addresses::fill(self.image, segment, &names, tokens, &mut table) {
                return Some(table);
            }
            self.names_only = self.names_only.max(names.count);
        }
        None
    }
}

/// The tables before the dictionary: `num_syms`, names and markers.
pub struct Names {
    /// How many symbols there are.
    pub count: usize,
    /// Where `num_syms` is, in bytes from the start of the segment.
    pub start: usize,
    /// Where the names are.
    names: usize,
    /// What the tables are aligned to, in bytes.
    pub align: usize,
}

impl Names {
    /// Checks whether `num_syms` can be at `start`: the names must end where markers that fit
    /// them begin, and the markers (or sequence numbers) where `data` ends: at the dictionary.
    fn at(data: &[u8], start: usize, align: usize, budget: &mut usize) -> Option<Self> {
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
    fn decode(&self, segment: &Segment<'_>, tokens: &Tokens<'_>) -> Option<Table> {
        let mut table = Table::with_capacity(self.count);
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
            if !kind.is_ascii_alphabetic() || name == table.text.len() || name > MAX_TEXT {
                return None;
            }
            let len = (table.text.len() - name) as u16;
            table.entries.push(Entry {
                address: 0,
                name: name as u32,
                len,
                kind,
            });
        }
        Some(table)
    }
}

/// Where the codes of the name at `at` begin, and how many bytes they are. Two bytes of length
/// came with Linux 6.1; before, no length had bit 7 set.
fn code_len(data: &[u8], at: usize) -> Option<(usize, usize)> {
    let low = usize::from(*data.get(at)?);
    if low & 0x80 == 0 {
        return Some((at + 1, low));
    }
    let high = usize::from(*data.get(at + 1)?);
    Some((at + 2, low & 0x7f | high << 7))
}
