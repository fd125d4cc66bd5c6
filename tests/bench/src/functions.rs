//! A kernel's functions, by its symbols.

use guest_kernel::symbols::Symbols;
use guest_state::GuestVirtAddr;

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its first byte.
    pub start: GuestVirtAddr,
    /// Bytes to the next symbol.
    pub size: u64,
    /// True if it is a function that is called. A part that the compiler split off, and the padding before a function,
    /// have no entry.
    pub has_entry: bool,
    /// True if it is such padding.
    pub is_padding: bool,
    /// True if the kernel frees it after its start.
    pub is_init: bool,
}

/// All symbols of code, each address once, in order.
pub fn all(symbols: &Symbols) -> Vec<Function> {
    let mut found: Vec<Function> = Vec::new();
    for symbol in symbols.iter() {
        let start = symbol.address;
        let is_code = matches!(symbol.kind, 't' | 'T' | 'w' | 'W') && symbols.is_text(start);
        if !is_code || found.last().is_some_and(|last| last.start == start) {
            continue;
        }
        let Some(within) = symbols.resolve(start) else {
            continue;
        };
        let name = within.symbol.name.to_owned();
        found.push(Function {
            has_entry: has_entry(&name),
            is_padding: is_padding(&name),
            is_init: symbols.init_text().contains(&start),
            size: within.size,
            start,
            name,
        });
    }
    found
}

/// Returns true if a function of this name is called. `.cold` is what GCC moved out of a function: jumps lead to it, no
/// call.
fn has_entry(name: &str) -> bool {
    !name.contains(".cold") && !is_padding(name)
}

/// Returns true if the name is one of the padding before a function, `__pfx_` or `__cfi_` (`FUNCTION_PADDING_BYTES`,
/// Linux 6.2 on).
fn is_padding(name: &str) -> bool {
    name.starts_with("__pfx_") || name.starts_with("__cfi_")
}

#[cfg(test)]
mod tests {
    use super::has_entry;

    #[test]
    fn pieces_and_padding_have_no_entry() {
        assert!(has_entry("vfs_read"));
        assert!(has_entry("do_one.isra.0"));
        for name in ["vfs_read.cold", "__pfx_vfs_read", "__cfi_vfs_read"] {
            assert!(!has_entry(name), "{name}");
        }
    }
}
