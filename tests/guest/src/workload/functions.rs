//! The functions in the kernel's text, by its own list of symbols.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use serde_json::{Value, json};

const SYMBOLS: &str = "/proc/kallsyms";
/// The bounds of all text that stays after the kernel's start.
const BOUNDS: [&str; 2] = ["_stext", "_etext"];
/// Prefixes of the padding before a function, for patches.
const ROOM: [&str; 2] = ["__pfx_", "__cfi_"];

/// Reports how many functions there are, and a digest of their addresses.
pub fn run() -> io::Result<Value> {
    let text = fs::read_to_string(SYMBOLS)?;
    let odd = || io::Error::other(format!("{SYMBOLS} shows no addresses, or no text"));
    let functions = functions(&text).ok_or_else(odd)?;
    Ok(json!({ "functions": functions.len(), "digest": digest(&functions) }))
}

/// Where functions begin.
fn functions(text: &str) -> Option<BTreeSet<u64>> {
    let mut bounds = [0; 2];
    let mut found = BTreeSet::new();
    for line in text.lines() {
        // A tab and the name of a module follow in the line of a module's symbol. Its text isn't
        // the kernel's.
        let mut words = line.split(' ');
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let (kind, name) = (words.next()?, words.next()?);
        if let Some(bound) = BOUNDS.iter().position(|bound| *bound == name) {
            bounds[bound] = address;
        }
        let is_room = ROOM.iter().any(|room| name.starts_with(room));
        if matches!(kind, "t" | "T" | "w" | "W") && !is_room && !name.contains('\t') {
            found.insert(address);
        }
    }
    let [start, end] = bounds;
    found.retain(|address| (start..end).contains(address));
    (!found.is_empty()).then_some(found)
}

/// The 64-bit FNV-1a hash of the addresses, little-endian, in their order.
fn digest(addresses: &BTreeSet<u64>) -> u64 {
    let bytes = addresses.iter().flat_map(|address| address.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_kernels_own_text_count_once_each() {
        let text = "ffffffff80000ff0 T before\n\
                    ffffffff81000000 T _stext\n\
                    ffffffff81000000 T same\n\
                    ffffffff81000010 t __pfx_local\n\
                    ffffffff81000020 t local\n\
                    ffffffff81000028 d data\n\
                    ffffffff81000030 W weak\n\
                    ffffffff81000040 T _etext\n\
                    ffffffff81000030 t inside\t[module]\n\
                    ffffffffc0000000 t beside\t[module]\n";
        let found: Vec<u64> = functions(text).unwrap().into_iter().collect();
        let offsets = [0, 0x20, 0x30].map(|offset| 0xffff_ffff_8100_0000 + offset);
        assert_eq!(found, offsets);
    }

    #[test]
    fn hidden_addresses_are_no_list() {
        let text = "0000000000000000 T _stext\n0000000000000000 T _etext\n";
        assert_eq!(functions(text), None);
    }

    #[test]
    fn the_digest_is_fnv() {
        // Without any bytes, it is the offset basis.
        assert_eq!(digest(&BTreeSet::new()), 0xcbf2_9ce4_8422_2325);
        assert_ne!(digest(&BTreeSet::from([1])), digest(&BTreeSet::from([2])));
    }
}
