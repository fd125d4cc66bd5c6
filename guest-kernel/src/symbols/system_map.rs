//! Lists of symbols as text: `System.map`, which is what `nm -n` prints of a vmlinux (`scripts/mksysmap` of the
//! kernel's build), and `/proc/kallsyms`.

use super::given_error::GivenError;
use super::table::{SymbolEntry, SymbolTable};

/// Reads a list. Functions of modules, which `/proc/kallsyms` has as well, are left out.
pub(super) fn read(file: &[u8]) -> Result<SymbolTable, GivenError> {
    let lines = file.iter().filter(|byte| **byte == b'\n').count();
    let mut table = SymbolTable::with_capacity(lines);
    for (index, line) in file.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() || line.contains(&b'\t') {
            continue;
        }
        let added = str::from_utf8(line).ok().and_then(|line| {
            let (address, kind, name) = parse(line)?;
            let (start, len) = (u32::try_from(table.text.len()), u16::try_from(name.len()));
            table.entries.push(SymbolEntry {
                address,
                name: start.ok()?,
                len: len.ok()?,
                kind,
            });
            table.text.push_str(name);
            Some(())
        });
        if added.is_none() {
            return Err(GivenError::Line { line: index + 1 });
        }
    }
    table.entries.sort_by_key(|entry| entry.address);
    Ok(table)
}

/// Splits a line into an address, a letter of `nm` and a name.
fn parse(line: &str) -> Option<(u64, u8, &str)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let [kind] = words.next()?.as_bytes() else {
        return None;
    };
    let name = words.next()?;
    (kind.is_ascii_alphabetic() && words.next().is_none()).then_some((address, *kind, name))
}
