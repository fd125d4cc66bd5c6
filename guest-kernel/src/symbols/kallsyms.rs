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

use super::addresses;
use super::names::NameTable;
use super::table::SymbolTable;
use super::tokens::Tokens;
use crate::image::{Image, LoadSegment};

/// What the tables can be aligned to, in bytes.
const ALIGNMENTS: [usize; 2] = [8, 4];
/// How many places, names and bytes of text the search may look at, so that no file can make it
/// endless. A kernel needs about a tenth.
const SEARCH_BUDGET: usize = 1 << 27;

/// The result of the search.
pub enum KallsymsFound {
    /// A symbol table, sorted by address.
    Table(SymbolTable),
    /// The names of that many symbols, but not their addresses.
    NamesOnly(usize),
    /// Nothing.
    Nothing,
}

/// Looks for kallsyms' tables in a vmlinux.
pub fn find(image: &Image<'_>) -> KallsymsFound {
    let mut search = Search {
        image,
        budget: SEARCH_BUDGET,
        names_only: 0,
    };
    for segment in &image.segments {
        for tokens in Tokens::find_all(segment.data) {
            for align in ALIGNMENTS {
                if let Some(table) = search.before(segment, &tokens, align) {
                    return KallsymsFound::Table(table);
                }
            }
        }
    }
    if search.names_only == 0 {
        KallsymsFound::Nothing
    } else {
        KallsymsFound::NamesOnly(search.names_only)
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
        segment: &LoadSegment<'_>,
        tokens: &Tokens<'_>,
        align: usize,
    ) -> Option<SymbolTable> {
        // Segments begin at a page, so an offset is aligned as its address is.
        let data = segment.data.get(..tokens.start)?;
        for at in (0..data.len()).step_by(align).rev() {
            self.budget = self.budget.checked_sub(1)?;
            let Some(names) = NameTable::at(data, at, align, &mut self.budget) else {
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
