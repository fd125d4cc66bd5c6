//! The guest kernel's symbols, read from its image: no symbol file is needed.
//!
//! A distribution's vmlinux is stripped, but carries the tables from which the kernel itself
//! prints names (`kallsyms`). They are found by their structure, with no address known; where a
//! kernel was built without them, an unstripped vmlinux's ELF symbol table does as well.

use std::ops::Range;

use guest_state::GuestVirtAddr;
use thiserror::Error;

use crate::image::{Image, ImageError};

mod addresses;
mod belongs;
mod given;
mod given_error;
pub(crate) mod glob;
mod kallsyms;
mod names;
mod similar;
mod symtab;
#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::expect_used,
    reason = "only tests use it, with names of theirs"
)]
pub mod synthetic;
mod system_map;
mod table;
#[cfg(test)]
mod tests;
mod tokens;

pub use given::GivenSymbols;
pub use given_error::GivenError;
pub use similar::similar_names;
pub use table::Symbol;
use table::{SymbolEntry, SymbolTable};

/// How many similar names an error lists.
const SIMILAR: usize = 5;

/// Returns true for a symbol that is no function: a part of a function that the compiler has put elsewhere, or the
/// padding in front of one (`FUNCTION_PADDING_BYTES` in the kernel's Makefile).
pub fn is_part_of_function(name: &str) -> bool {
    name.starts_with("__pfx_") || name.ends_with(".cold")
}

/// The symbol that an address belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// The symbol at or below the address.
    pub symbol: Symbol<'a>,
    /// How many bytes the address lies above the symbol.
    pub offset: u64,
    /// How many bytes there are from the symbol to the next one at another address.
    pub size: u64,
}

/// Where symbols were read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The kernel's own tables (`CONFIG_KALLSYMS`).
    Kallsyms,
    /// The ELF symbol table of an unstripped vmlinux.
    ElfSymtab,
    /// A list of symbols as text.
    SystemMap,
}

/// Why there are no symbols.
#[derive(Debug, Error)]
pub enum SymbolsError {
    /// Not a vmlinux.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Neither kallsyms nor ELF symbols.
    #[error(
        "the kernel holds no symbols; build it with CONFIG_KALLSYMS=y (distributions do), or give its unstripped \
         vmlinux or its System.map (`--symbols FILE`)"
    )]
    None,
    /// Kallsyms in an arrangement that isn't known.
    #[error(
        "the kernel's kallsyms tables name {count} symbols, but their addresses are stored in a \
         way that vmprobe doesn't know; give its unstripped vmlinux or its System.map (`--symbols FILE`), and report \
         the kernel's version"
    )]
    UnknownAddresses {
        /// How many symbols are named.
        count: usize,
    },
    /// A symbol that says where things are is missing.
    #[error("the kernel has no symbol {name:?}, which bounds its text; is it a Linux kernel?")]
    MissingBound {
        /// The symbol.
        name: &'static str,
    },
}

/// Why a name doesn't give one symbol.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LookupError {
    /// No symbol has the name.
    #[error("the guest kernel has no symbol {name:?}{}", hint(.similar))]
    Unknown {
        /// The requested name.
        name: String,
        /// A few similar names, the most similar first: what the compiler derived from it
        /// (`name.isra.0`), what differs in a letter or two, what has a suffix or a prefix.
        similar: Vec<String>,
    },
    /// Several symbols at different addresses have the name.
    #[error(
        "{} symbols of the guest kernel are called {name:?}; give one of their addresses instead: {}",
        .addresses.len(), list(.addresses)
    )]
    Ambiguous {
        /// The requested name.
        name: String,
        /// Their addresses, in order.
        addresses: Vec<GuestVirtAddr>,
    },
}

fn hint(similar: &[String]) -> String {
    if similar.is_empty() {
        return "; it may be inlined, in a module, or not built into this kernel".to_owned();
    }
    format!("; did you mean {}?", similar.join(", "))
}

fn list(addresses: &[GuestVirtAddr]) -> String {
    addresses
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// All symbols of a kernel.
#[derive(Debug)]
pub struct Symbols {
    table: SymbolTable,
    /// Hash of each symbol's name and its number, sorted.
    by_name: Vec<(u32, u32)>,
    source: Source,
    image: Range<u64>,
    text: Range<GuestVirtAddr>,
    init_text: Range<GuestVirtAddr>,
}

impl Symbols {
    /// Reads the symbols of a vmlinux, stripped or not. Takes some tens of milliseconds.
    ///
    /// # Errors
    /// See [`SymbolsError`].
    ///
    /// ```no_run
    /// use guest_kernel::symbols::Symbols;
    ///
    /// let symbols = Symbols::from_vmlinux(&std::fs::read("vmlinux")?)?;
    /// let vfs_read = symbols.find("vfs_read")?;
    /// assert!(symbols.is_text(vfs_read.address));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_vmlinux(elf: &[u8]) -> Result<Self, SymbolsError> {
        Self::from_image(&Image::parse(elf)?)
    }

    /// As [`Self::from_vmlinux`], for a file whose headers have been read.
    ///
    /// # Errors
    /// See [`SymbolsError`].
    pub fn from_image(image: &Image<'_>) -> Result<Self, SymbolsError> {
        match kallsyms::find(image) {
            kallsyms::KallsymsFound::Table(table) => Self::new(table, Source::Kallsyms, image),
            other => match (symtab::read(image), other) {
                (Some(table), _) => Self::new(table, Source::ElfSymtab, image),
                (None, kallsyms::KallsymsFound::NamesOnly(count)) => {
                    Err(SymbolsError::UnknownAddresses { count })
                }
                (None, _) => Err(SymbolsError::None),
            },
        }
    }

    /// Reads the ELF symbol table alone, passing kallsyms by.
    ///
    /// # Errors
    /// See [`SymbolsError`].
    pub fn from_elf_symtab(elf: &[u8]) -> Result<Self, SymbolsError> {
        let image = Image::parse(elf)?;
        let table = symtab::read(&image).ok_or(SymbolsError::None)?;
        Self::new(table, Source::ElfSymtab, &image)
    }

    fn new(table: SymbolTable, source: Source, image: &Image<'_>) -> Result<Self, SymbolsError> {
        let mut by_name: Vec<_> = table
            .entries
            .iter()
            .zip(0..)
            .map(|(entry, i)| (hash(table.name(entry)), i))
            .collect();
        by_name.sort_unstable();
        let mut symbols = Self {
            table,
            by_name,
            source,
            image: image.range(),
            text: GuestVirtAddr(0)..GuestVirtAddr(0),
            init_text: GuestVirtAddr(0)..GuestVirtAddr(0),
        };
        symbols.text = symbols.bound("_stext")?..symbols.bound("_etext")?;
        // Lists of symbols may leave the init sections out.
        if let (Ok(start), Ok(end)) = (symbols.bound("_sinittext"), symbols.bound("_einittext")) {
            symbols.init_text = start..end;
        }
        Ok(symbols)
    }

    fn bound(&self, name: &'static str) -> Result<GuestVirtAddr, SymbolsError> {
        let first = self
            .by_name(name)
            .next()
            .ok_or(SymbolsError::MissingBound { name })?;
        Ok(first.address)
    }

    /// How many symbols there are.
    pub fn len(&self) -> usize {
        self.table.entries.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.table.entries.is_empty()
    }

    /// Where they were read from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// All symbols, in the order of their addresses.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Symbol<'_>> {
        self.table
            .entries
            .iter()
            .map(|entry| self.table.symbol(entry))
    }

    /// Returns all symbols of a name, in the order of their addresses.
    pub fn by_name<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Symbol<'a>> {
        self.hashed(hash(name))
            .filter(move |symbol| symbol.name == name)
    }

    /// Returns all symbols whose names have a hash.
    fn hashed(&self, hash: u32) -> impl Iterator<Item = Symbol<'_>> {
        let start = self.by_name.partition_point(|(other, _)| *other < hash);
        self.by_name[start..]
            .iter()
            .take_while(move |(other, _)| *other == hash)
            .map(|(_, i)| self.table.symbol(&self.table.entries[*i as usize]))
    }

    /// Returns the one symbol of a name; `None` if there is none, or there are several at different addresses.
    pub fn get(&self, name: &str) -> Option<Symbol<'_>> {
        match self.at_different_addresses(name)[..] {
            [symbol] => Some(symbol),
            _ => None,
        }
    }

    /// Returns the one symbol of a name. Where there is none, it takes some milliseconds to find similar names.
    ///
    /// # Errors
    /// There is none, or there are several at different addresses.
    pub fn find(&self, name: &str) -> Result<Symbol<'_>, LookupError> {
        let named = self.at_different_addresses(name);
        match named[..] {
            [] => Err(LookupError::Unknown {
                name: name.to_owned(),
                similar: self.similar(name),
            }),
            [symbol] => Ok(symbol),
            _ => Err(LookupError::Ambiguous {
                name: name.to_owned(),
                addresses: named.iter().map(|symbol| symbol.address).collect(),
            }),
        }
    }

    /// Returns the symbols of a name, one for each address.
    fn at_different_addresses(&self, name: &str) -> Vec<Symbol<'_>> {
        let mut named: Vec<_> = self.hashed(hash(name)).filter(|s| s.name == name).collect();
        named.dedup_by_key(|symbol| symbol.address);
        named
    }

    /// Returns the symbols whose whole name matches a pattern of `*` (any text) and `?` (one character), in the order
    /// of their addresses.
    pub fn find_matching<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = Symbol<'a>> {
        self.iter()
            .filter(move |symbol| glob::matches(pattern, symbol.name))
    }

    /// Returns the symbol that an address of the kernel image lies in: the nearest at or below it. Of several at one
    /// address, functions win over other symbols, and global over local ones. `None` outside the image: in user space,
    /// modules, per-CPU areas.
    pub fn resolve(&self, address: GuestVirtAddr) -> Option<Resolved<'_>> {
        self.nearest(address, |all| {
            all.iter().min_by_key(|entry| rank(entry.kind))
        })
    }

    /// As [`Self::resolve`], but by the name that the kernel prints, which is the first of those in its table
    /// (`get_symbol_pos` in `kernel/kallsyms.c`).
    pub fn resolve_as_printed(&self, address: GuestVirtAddr) -> Option<Resolved<'_>> {
        self.nearest(address, <[SymbolEntry]>::first)
    }

    /// Returns the nearest symbol at or below an address. If there are several, `choose` takes one.
    fn nearest(
        &self,
        address: GuestVirtAddr,
        choose: impl Fn(&[SymbolEntry]) -> Option<&SymbolEntry>,
    ) -> Option<Resolved<'_>> {
        if !self.image.contains(&address.0) {
            return None;
        }
        let entries = &self.table.entries;
        let end = entries.partition_point(|entry| entry.address <= address.0);
        let at = entries[..end].last()?.address;
        if !self.image.contains(&at) {
            return None;
        }
        let start = entries[..end].partition_point(|entry| entry.address < at);
        let chosen = choose(&entries[start..end])?;
        let next = entries
            .get(end)
            .map_or(self.image.end, |entry| entry.address);
        Some(Resolved {
            symbol: self.table.symbol(chosen),
            offset: address.0 - at,
            size: next.min(self.image.end) - at,
        })
    }

    /// The kernel's text, `_stext` to `_etext`.
    pub fn text(&self) -> Range<GuestVirtAddr> {
        self.text.clone()
    }

    /// The text that the kernel frees after its start, `_sinittext` to `_einittext`; empty where
    /// there is none.
    pub fn init_text(&self) -> Range<GuestVirtAddr> {
        self.init_text.clone()
    }

    /// Returns true if an address lies in the kernel's text or init text.
    pub fn is_text(&self, address: GuestVirtAddr) -> bool {
        self.text.contains(&address) || self.init_text.contains(&address)
    }
}

/// Returns the hash of a name: FNV-1a, 32 bits.
pub(crate) fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Returns a rank: the lower, the better a symbol stands for its address.
fn rank(kind: u8) -> u8 {
    match kind {
        b'T' => 0,
        b't' => 1,
        b'W' | b'w' => 2,
        b'A' | b'a' => 4,
        _ => 3,
    }
}
