//! kallsyms' addresses: where the table is and how it is encoded, checked by the addresses that
//! result.
//!
//! Source: Linux `scripts/kallsyms.c` and `kernel/kallsyms.c`, `kallsyms_sym_address()`.
//! Up to 6.3 the table lies right before `num_syms`, from 6.4 right after the dictionary.

use super::names::NameTable;
use super::table::SymbolTable;
use super::tokens::Tokens;
use crate::image::{Image, LoadSegment};

/// How an entry of the table gives an address.
#[derive(Debug, Clone, Copy)]
enum Encoding {
    /// The address itself (u64).
    Absolute,
    /// An offset (u32) from a base (u64 behind the offsets).
    Relative,
    /// As `Relative`, but an offset in the lower half of the numbers is the address of a per-CPU
    /// variable itself. The others are negative, for the address base - 1 - offset
    /// (`CONFIG_KALLSYMS_ABSOLUTE_PERCPU`, up to 6.14).
    RelativeOrPerCpu,
    /// An offset (i32) from the entry itself; no base (seen in 7.2).
    FromEntry,
}

const ENCODINGS: [Encoding; 4] = [
    Encoding::RelativeOrPerCpu,
    Encoding::Relative,
    Encoding::FromEntry,
    Encoding::Absolute,
];

/// Finds the addresses and fills them in. Returns false if no place and encoding gives addresses
/// that are in order and put `_stext` and `_etext` into the image's code.
pub fn fill(
    image: &Image<'_>,
    segment: &LoadSegment<'_>,
    names: &NameTable,
    tokens: &Tokens<'_>,
    table: &mut SymbolTable,
) -> bool {
    let limits = [table.position("_stext"), table.position("_etext")];
    let [Some(start), Some(end)] = limits else {
        return false;
    };
    ENCODINGS.into_iter().any(|encoding| {
        let len = encoding.table_len(names);
        let places = [Some(tokens.end), names.start.checked_sub(len)];
        places.into_iter().flatten().any(|at| {
            let Some(addresses) = AddressTable::new(segment, at, len, encoding) else {
                return false;
            };
            if !image.is_code(&(addresses.address(start)..addresses.address(end)))
                || !(0..names.count).map(|i| addresses.address(i)).is_sorted()
            {
                return false;
            }
            for (i, entry) in table.entries.iter_mut().enumerate() {
                entry.address = addresses.address(i);
            }
            true
        })
    })
}

impl Encoding {
    /// Returns the length of the whole table in bytes, its base and padding included.
    fn table_len(self, names: &NameTable) -> usize {
        let offsets = (names.count * 4).next_multiple_of(names.align);
        match self {
            Self::Absolute => names.count * 8,
            Self::Relative | Self::RelativeOrPerCpu => offsets + 8,
            Self::FromEntry => offsets,
        }
    }
}

/// Reads a table by one encoding.
struct AddressTable<'a> {
    encoding: Encoding,
    entries: &'a [u8],
    /// The base, or the address of the table for [`Encoding::FromEntry`].
    base: u64,
}

impl<'a> AddressTable<'a> {
    fn new(segment: &LoadSegment<'a>, at: usize, len: usize, encoding: Encoding) -> Option<Self> {
        let entries = segment.data.get(at..at.checked_add(len)?)?;
        let base = match encoding {
            Encoding::Absolute => 0,
            Encoding::Relative | Encoding::RelativeOrPerCpu => {
                u64::from_le_bytes(*entries.last_chunk::<8>()?)
            }
            Encoding::FromEntry => segment.address.wrapping_add(at as u64),
        };
        Some(Self {
            encoding,
            entries,
            base,
        })
    }

    fn address(&self, i: usize) -> u64 {
        let offset = || {
            let bytes = self.entries.as_chunks::<4>().0.get(i);
            i32::from_le_bytes(bytes.copied().unwrap_or_default())
        };
        match self.encoding {
            Encoding::Absolute => {
                let bytes = self.entries.as_chunks::<8>().0.get(i);
                u64::from_le_bytes(bytes.copied().unwrap_or_default())
            }
            Encoding::Relative => self.base.wrapping_add(u64::from(offset().cast_unsigned())),
            Encoding::RelativeOrPerCpu => match offset() {
                absolute @ 0.. => u64::from(absolute.cast_unsigned()),
                negative => self
                    .base
                    .wrapping_sub(1)
                    .wrapping_add_signed(-i64::from(negative)),
            },
            Encoding::FromEntry => self
                .base
                .wrapping_add(i as u64 * 4)
                .wrapping_add_signed(i64::from(offset())),
        }
    }
}
