//! Functions of the guest's kernel, drawn at random.

use std::collections::BTreeMap;
use std::ops::Range;

use seeded_random::Random;
use vmprobe_client::v1::Symbol;

use super::decoder;
use super::guest::{Guest, VM};
use super::judge::{Function, Standing, is_traced};
use super::own_list::OwnList;
use crate::test::{Failure, check, wrong};

/// A longer function is followed by a section's padding.
const LONGEST: u64 = 0x4000;
/// Bytes of an instruction at most.
const MAX_LEN: usize = 15;
/// 32-bit code, which a hypervisor starts (`arch/x86/platform/pvh/head.S`).
const CODE_32: &str = "pvh_start_xen";
/// Has an int3 of its own in the middle (`arch/x86/kernel/reboot.c`).
pub const HAS_INT3: &str = "native_machine_emergency_restart";

/// Draws functions of the kernel's text whose names are unique: a probe by an ambiguous name is refused. [`HAS_INT3`]
/// is one of them.
///
/// # Errors
/// If one can't be read or decoded.
pub async fn draw(
    guest: &Guest,
    own: &OwnList,
    random: &mut Random,
    count: usize,
) -> Result<Vec<Function>, Failure> {
    let (symbols, more) = guest.client.lookup_symbols(VM, "*", 1_000_000).await?;
    check!(!more, "the list of symbols is cut off");
    let text = guest.symbol("_stext").await?..guest.symbol("_etext").await?;
    let named = Named::new(&symbols);
    let (mut drawn, others) = (named.functions(&text).into_iter())
        .partition::<Vec<_>, _>(|(symbol, _)| symbol.name == HAS_INT3);
    check!(drawn.len() == 1, "no {HAS_INT3}");
    drawn.extend(random.draw(others, count - 1));
    let mut functions = Vec::new();
    for (symbol, size) in drawn {
        let base = named.base(&symbol.name).map(|addresses| addresses[0]);
        let size = size as usize;
        let bytes = guest.memory(symbol.address, size + MAX_LEN).await?;
        let standing = if own.forbids(symbol.address, base) {
            Standing::Listed
        } else if is_traced(&bytes) {
            Standing::Open
        } else {
            // The kernel treats a part that the compiler has split off as it treats the function itself. A function in
            // init text is gone.
            match base.filter(|base| text.contains(base)) {
                Some(base) if is_traced(&guest.memory(base, MAX_LEN).await?) => Standing::Open,
                _ => Standing::Untraced,
            }
        };
        let code = decoder::decode(&bytes, size);
        functions.push(Function {
            name: symbol.name.clone(),
            start: symbol.address,
            size,
            code: code.map_err(|error| wrong!("{}: {error}", symbol.name))?,
            bytes,
            standing,
            is_alone: named.starts[&symbol.address] == 1,
        });
    }
    Ok(functions)
}

/// All symbols, by name and by address.
struct Named<'a> {
    symbols: &'a [Symbol],
    names: BTreeMap<&'a str, Vec<u64>>,
    /// How many symbols begin at each address.
    starts: BTreeMap<u64, usize>,
}

impl<'a> Named<'a> {
    fn new(symbols: &'a [Symbol]) -> Self {
        let mut names: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        let mut starts = BTreeMap::new();
        for symbol in symbols {
            names.entry(&symbol.name).or_default().push(symbol.address);
            *starts.entry(symbol.address).or_default() += 1;
        }
        Self {
            symbols,
            names,
            starts,
        }
    }

    /// Returns the addresses of the function from which the compiler has split this one off. Its name goes up to the
    /// first dot, as in `within_notrace_func` in `kernel/trace/trace_kprobe.c`.
    fn base(&self, name: &str) -> Option<&Vec<u64>> {
        let (base, _) = name.split_once('.')?;
        self.names.get(base)
    }

    /// Returns the functions and their sizes, one for each address.
    fn functions(&self, text: &Range<u64>) -> Vec<(&'a Symbol, u64)> {
        let mut functions = BTreeMap::new();
        for symbol in self.symbols {
            let is_text = matches!(&*symbol.kind, "t" | "T" | "w" | "W");
            // The prefix that the compiler puts before a function is no function itself.
            let is_part = ["__pfx_", "__cfi_"]
                .iter()
                .any(|prefix| symbol.name.starts_with(prefix));
            let is_64_bit = symbol.name != CODE_32;
            let is_clear = self.names[&*symbol.name].len() == 1
                && self.base(&symbol.name).is_none_or(|all| all.len() == 1);
            let next = self.starts.range(symbol.address + 1..).next();
            let size = next.map_or(u64::MAX, |(next, _)| next - symbol.address);
            let fits = size <= LONGEST && text.contains(&symbol.address);
            if is_text && is_64_bit && !is_part && is_clear && fits {
                functions.insert(symbol.address, (symbol, size));
            }
        }
        functions.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_a_name_and_an_end_of_their_own() {
        let symbols: Vec<Symbol> = [
            (0x1000, "t", "one"),
            (0x1020, "t", "__pfx_two"),
            (0x1030, "T", "two"),
            (0x1100, "t", "twice"),
            (0x1110, "t", "twice"),
            (0x1120, "t", "twice.cold"),
            (0x1130, "d", "data"),
            (0x1140, "t", "one.cold"),
            (0x1150, "t", "long"),
            (0x9000, "t", "outside"),
        ]
        .into_iter()
        .map(|(address, kind, name)| Symbol {
            name: name.into(),
            address,
            kind: kind.into(),
        })
        .collect();
        let named = Named::new(&symbols);
        let found = named.functions(&(0x1000..0x9000));
        let found: Vec<(&str, u64)> = found
            .into_iter()
            .map(|(symbol, size)| (&*symbol.name, size))
            .collect();
        assert_eq!(found, [("one", 0x20), ("two", 0xd0), ("one.cold", 0x10)]);
        assert_eq!(named.base("one.cold"), Some(&vec![0x1000]));
        assert_eq!(named.base("one"), None);
    }
}
