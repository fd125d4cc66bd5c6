//! Symbols as they are kept.

use guest_state::GuestVirtAddr;

/// One symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name. Several static functions may have the same.
    pub name: &'a str,
    /// Where it is. For a per-CPU variable of Linux up to 6.14 this is its offset
    /// in the per-CPU area.
    pub address: GuestVirtAddr,
    /// Its type by the letters of `nm`: `T` and `t` are text, upper case is global, `A` absolute.
    pub kind: char,
}

/// Symbols in the order of their addresses, all names in one string.
#[derive(Debug)]
pub(super) struct SymbolTable {
    pub(super) text: String,
    pub(super) entries: Vec<SymbolEntry>,
}

/// A symbol; its name is `len` bytes of the text at `name`.
#[derive(Debug)]
pub(super) struct SymbolEntry {
    pub(super) address: u64,
    pub(super) name: u32,
    pub(super) len: u16,
    pub(super) kind: u8,
}

impl SymbolTable {
    /// Average length of a name with its type, for a start.
    const NAME_LEN: usize = 24;

    pub(super) fn with_capacity(count: usize) -> Self {
        // A count from a damaged file must not reserve more than such a file could hold.
        let count = count.min(1 << 20);
        Self {
            text: String::with_capacity(count * Self::NAME_LEN),
            entries: Vec::with_capacity(count),
        }
    }

    pub(super) fn name(&self, entry: &SymbolEntry) -> &str {
        let start = entry.name as usize;
        &self.text[start..start + usize::from(entry.len)]
    }

    /// Returns the number of the first symbol of a name.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.entries
            .iter()
            .position(|entry| self.name(entry) == name)
    }

    pub(super) fn symbol(&self, entry: &SymbolEntry) -> Symbol<'_> {
        Symbol {
            name: self.name(entry),
            address: GuestVirtAddr(entry.address),
            kind: char::from(entry.kind),
        }
    }
}
