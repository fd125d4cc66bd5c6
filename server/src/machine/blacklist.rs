//! The text that can't be probed in the guest's kernel or one of its modules, read in chunks.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use guest_kernel::blacklist::{BlacklistEntry, Patched};
use guest_kernel::modules::Module;
use guest_kernel::symbols::{Resolved, Symbol};
use guest_state::GuestVirtAddr;
use tonic::{Code, Status};
use vmprobe_proto::v1;

use super::Machine;
use crate::{convert, limits, status};

/// Reads the blacklist of a VM's kernel, or of a module as it is loaded now, in address order. A range that spans
/// several symbols is split into one entry for each symbol, as in the kernel's own
/// `/sys/kernel/debug/kprobes/blacklist`.
#[derive(Debug)]
pub struct BlacklistReader {
    machine: Arc<Machine>,
    /// `None` for the kernel.
    module: Option<Module>,
    /// Addresses of the symbols that are asked for, or `None` for all.
    wanted: Option<HashSet<u64>>,
    /// True if the kernel has made the changes to its text that it makes only once.
    started: bool,
    at: Position,
}

impl BlacklistReader {
    /// Makes a reader of the entries in symbols that match a pattern, or of all entries when the pattern is empty. With
    /// a module's name before it, the pattern is about the module's functions. Blocks: looks through all symbols.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a pattern longer than any name, `NOT_FOUND` when no symbol matches, or the module isn't
    /// loaded.
    pub fn new(machine: Arc<Machine>, pattern: &str) -> Result<Self, Status> {
        if pattern.len() > limits::PATTERN_BYTES {
            let most = limits::PATTERN_BYTES;
            let why = format!("a pattern has at most {most} characters");
            return Err(status::invalid(FIELD, why));
        }
        let (module, pattern) = match pattern.split_once(':') {
            Some((module, pattern)) => (Some(machine.module(FIELD, module)?), pattern),
            None => (None, pattern),
        };
        let wanted = match (pattern, &module) {
            ("", _) => None,
            (pattern, Some(module)) => Some(wanted_in(module, pattern)?),
            (pattern, None) => Some(wanted(&machine, pattern)?),
        };
        Ok(Self {
            started: machine.engine.is_started(),
            machine,
            module,
            wanted,
            at: Position::default(),
        })
    }

    /// Returns the next entries: at most [`limits::BLACKLIST_CHUNK`], perhaps none after a long stretch of entries that
    /// aren't asked for. `None` when all are read. Blocks for a bounded time.
    pub fn next(&mut self) -> Option<Vec<v1::BlacklistEntry>> {
        let engine = &self.machine.engine;
        let module = self.module.as_ref();
        let list = module.map_or_else(|| engine.blacklist(), |module| &module.blacklist);
        let resolve = |at| match module {
            Some(module) => resolve_in(module, at),
            None => engine.symbols().resolve(at),
        };
        let stands =
            |entry: &BlacklistEntry| !self.started || entry.reason.patched() != Patched::Once;
        let entries = list.entries().filter(stands);
        let entries = entries.skip(self.at.entry);
        let ranges = entries.map(|entry| (entry.range, entry.reason));
        let pieces = stretch(ranges, &mut self.at, resolve)?;
        let is_wanted = |piece: &Piece<'_, _>| match (&self.wanted, piece.symbol) {
            (None, _) => true,
            (Some(wanted), Some(found)) => wanted.contains(&found.symbol.address.0),
            (Some(_), None) => false,
        };
        let told = pieces.into_iter().filter(is_wanted);
        Some(
            told.map(|piece| v1::BlacklistEntry {
                start: piece.range.start.0,
                end: piece.range.end.0,
                symbol: piece
                    .symbol
                    .map_or_else(String::new, |found| found.symbol.name.to_owned()),
                offset: piece.symbol.map_or(0, |found| found.offset),
                kind: convert::blacklist_kind(piece.reason).into(),
                reason: piece.reason.to_string(),
            })
            .collect(),
        )
    }
}

/// The field of a request that has the pattern.
const FIELD: &str = "pattern";

/// Returns the function of a module that covers an address, as a symbol.
fn resolve_in(module: &Module, at: GuestVirtAddr) -> Option<Resolved<'_>> {
    let (function, offset) = module.functions.resolve(at)?;
    Some(Resolved {
        symbol: Symbol {
            name: &function.name,
            address: function.address,
            kind: 't',
        },
        offset,
        size: function.size,
    })
}

/// Returns the addresses of a module's functions that match a pattern.
fn wanted_in(module: &Module, pattern: &str) -> Result<HashSet<u64>, Status> {
    let functions = module.functions.matching(pattern);
    let found: HashSet<u64> = functions.map(|function| function.address.0).collect();
    if found.is_empty() {
        let name = &module.name;
        let why = format!("no function of module {name:?} matches `{pattern}`");
        return Err(status::with_field(Code::NotFound, FIELD, why));
    }
    Ok(found)
}

/// Returns the addresses of the symbols that match a pattern.
fn wanted(machine: &Machine, pattern: &str) -> Result<HashSet<u64>, Status> {
    let symbols = machine.engine.symbols();
    let found: HashSet<u64> = symbols
        .find_matching(pattern)
        .map(|symbol| symbol.address.0)
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let message = match symbols.find(pattern) {
        Err(error) if !pattern.contains(['*', '?']) => error.to_string(),
        _ => format!("no symbol of the guest's kernel matches `{pattern}`"),
    };
    Err(status::with_field(Code::NotFound, FIELD, message))
}

/// How far the entries have been read.
#[derive(Debug, Default)]
struct Position {
    /// How many entries are done.
    entry: usize,
    /// Where the next piece of the entry after them begins, if that entry has been begun.
    at: GuestVirtAddr,
}

/// The part of an entry that is in one symbol.
#[derive(Debug, PartialEq, Eq)]
struct Piece<'a, R> {
    range: Range<GuestVirtAddr>,
    symbol: Option<Resolved<'a>>,
    reason: R,
}

/// Returns the next pieces, at most [`limits::BLACKLIST_CHUNK`], or `None` when there are no more entries. The pieces
/// are counted and not the entries, as an image can be made whose few entries cover many symbols.
fn stretch<'a, R: Copy>(
    mut entries: impl Iterator<Item = (Range<GuestVirtAddr>, R)>,
    position: &mut Position,
    resolve: impl Fn(GuestVirtAddr) -> Option<Resolved<'a>>,
) -> Option<Vec<Piece<'a, R>>> {
    let (mut range, mut reason) = entries.next()?;
    let mut pieces = Vec::new();
    while pieces.len() < limits::BLACKLIST_CHUNK {
        let start = position.at.max(range.start);
        let symbol = resolve(start);
        let end = symbol
            .and_then(|found| found.symbol.address.checked_add(found.size))
            .map_or(range.end, |next| next.min(range.end));
        pieces.push(Piece {
            range: start..end,
            symbol,
            reason,
        });
        position.at = end;
        if end <= start || end == range.end {
            position.entry += 1;
            position.at = GuestVirtAddr::default();
            match entries.next() {
                Some(next) => (range, reason) = next,
                None => break,
            }
        }
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of 16 bytes each, from 0x1000 to 0x100000.
    fn resolve(at: GuestVirtAddr) -> Option<Resolved<'static>> {
        (0x1000..0x10_0000).contains(&at.0).then_some(Resolved {
            symbol: Symbol {
                name: "f",
                address: GuestVirtAddr(at.0 & !15),
                kind: 't',
            },
            offset: at.0 & 15,
            size: 16,
        })
    }

    /// Ranges of all pieces, read to the end.
    fn read(entries: &[(u64, u64)]) -> Vec<Vec<(u64, u64)>> {
        let mut position = Position::default();
        let mut chunks = Vec::new();
        loop {
            let rest = entries.iter().skip(position.entry);
            let ranges = rest.map(|(start, end)| (GuestVirtAddr(*start)..GuestVirtAddr(*end), ()));
            let Some(pieces) = stretch(ranges, &mut position, resolve) else {
                return chunks;
            };
            let ranges = pieces.iter().map(|piece| &piece.range);
            chunks.push(ranges.map(|range| (range.start.0, range.end.0)).collect());
        }
    }

    #[test]
    fn an_entry_is_told_symbol_by_symbol() {
        assert_eq!(
            read(&[(0x1004, 0x1009), (0x1008, 0x1028), (0x2000, 0x2010)]),
            [[
                (0x1004, 0x1009),
                (0x1008, 0x1010),
                (0x1010, 0x1020),
                (0x1020, 0x1028),
                (0x2000, 0x2010),
            ]]
        );
    }

    #[test]
    fn a_range_that_no_symbol_covers_is_listed_whole() {
        assert_eq!(read(&[(0x10, 0x800)]), [[(0x10, 0x800)]]);
    }

    #[test]
    fn a_long_list_comes_in_chunks_with_nothing_twice_and_nothing_missing() {
        let (start, end) = (0x1008, 0x1008 + 16 * 2500);
        let chunks = read(&[(start, end), (end, end + 4)]);
        let lengths: Vec<usize> = chunks.iter().map(Vec::len).collect();
        assert_eq!(lengths, [1000, 1000, 502]);
        let all: Vec<(u64, u64)> = chunks.concat();
        assert!(all.windows(2).all(|pair| pair[0].1 == pair[1].0));
        assert_eq!((all[0].0, all[all.len() - 1].1), (start, end + 4));
    }

    #[test]
    fn nothing_is_read_from_an_empty_list() {
        assert!(read(&[]).is_empty());
    }
}
