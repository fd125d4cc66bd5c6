//! The functions of a guest's kernel, and the expected outcome of a probe on each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use iced_x86::Mnemonic;
use vmprobe_client::v1::{BlacklistEntry, BlacklistKind};
use vmprobe_client::words;

use super::code::decode;
use super::guest::{Guest, VM};
use super::offer::Offered;
use super::text::Text;
use crate::test::{Failure, check, check_eq, wrong};

/// `endbr64`, and what the kernel writes in its place if the function is no target of indirect branches
/// (`gen_endbr_poison` in `arch/x86/include/asm/ibt.h`).
const ENDBR: [[u8; 4]; 2] = [[0xf3, 0x0f, 0x1e, 0xfa], [0x66, 0x0f, 0x1f, 0x00]];

/// Bytes of an instruction at most.
const LONGEST: usize = 15;

/// A function.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its first byte.
    pub start: u64,
    /// The next symbol.
    pub end: u64,
    /// Its first instruction behind `endbr64` and the site of the function tracer.
    pub entry: u64,
    /// Its name, or the entry's address where several symbols have the name.
    pub place: String,
    /// One of its names.
    pub name: String,
}

/// Returns all functions in the kernel's text, by address. Checks that they are those that the kernel itself lists.
///
/// # Errors
/// If they aren't.
pub async fn all(guest: &mut Guest, text: &Text) -> Result<Vec<Function>, Failure> {
    let functions = find(guest, text).await?;
    let own = guest.work("functions").await?;
    check_eq!(
        own["functions"],
        functions.len(),
        "functions in the kernel's text, as it lists them itself"
    );
    let addresses = functions.iter().map(|function| function.start);
    check_eq!(own["digest"], digest(addresses), "their addresses' digest");
    Ok(functions)
}

/// The functions as the product lists them.
///
/// # Errors
/// If they can't be listed.
pub async fn find(guest: &Guest, text: &Text) -> Result<Vec<Function>, Failure> {
    let (symbols, more) = guest.client.lookup_symbols(VM, "*", 1_000_000).await?;
    check!(!more, "the list of symbols is cut off");
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut functions = BTreeMap::new();
    for symbol in &symbols {
        *names.entry(&*symbol.name).or_default() += 1;
        // The prefix that the compiler puts before a function is no function itself.
        let part = ["__pfx_", "__cfi_"]
            .iter()
            .any(|it| symbol.name.starts_with(it));
        let is_code = matches!(&*symbol.kind, "t" | "T" | "w" | "W") && !part;
        if is_code && text.range().contains(&symbol.address) {
            functions.insert(symbol.address, &*symbol.name);
        }
    }
    let bounds: BTreeSet<u64> = symbols.iter().map(|symbol| symbol.address).collect();
    let function = |(start, name): (u64, &str)| {
        let next = bounds.range(start + 1..).next();
        let entry = entry(text, start);
        Function {
            start,
            end: next.copied().unwrap_or(text.range().end),
            entry,
            place: match names.get(name) {
                Some(1) => name.to_owned(),
                _ => format!("{entry:#x}"),
            },
            name: name.to_owned(),
        }
    };
    Ok(functions.into_iter().map(function).collect())
}

/// The address behind `endbr64` and the ftrace site, where the code begins that only the function itself uses.
fn entry(text: &Text, start: u64) -> u64 {
    let begins = ENDBR.iter().any(|endbr| text.at(start, 4) == endbr);
    let behind = if begins { start + 4 } else { start };
    let mut sites = text.listed(behind..behind + 1);
    let site = sites.find(|entry| entry.kind() == BlacklistKind::Ftrace && entry.start == behind);
    site.map_or(behind, |site| site.end)
}

/// The 64-bit FNV-1a hash of addresses, little-endian, as the guest makes it.
fn digest(addresses: impl Iterator<Item = u64>) -> u64 {
    let bytes = addresses.flat_map(u64::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Function {
    /// Returns true if all functions of a kernel with mitigations return through this one: `srso_safe_ret`,
    /// `srso_return_thunk` and their like (Linux `arch/x86/lib/retpoline.S`). With a breakpoint there the guest makes
    /// no headway in the lab: its tick takes longer than the time until the next one.
    pub fn is_return_thunk(&self) -> bool {
        self.name.contains("return_thunk") || self.name.ends_with("_ret")
    }

    /// The entries of the blacklist that cover its entry's instruction.
    pub fn listed<'a>(&self, text: &'a Text) -> impl Iterator<Item = &'a BlacklistEntry> {
        let first = decode(self.entry, text.at(self.entry, LONGEST));
        let length = first.first().map_or(1, iced_x86::Instruction::len);
        text.listed(self.entry..self.entry + length as u64)
    }

    /// Returns why its entry can't be probed although the blacklist doesn't have it, as its code shows.
    fn unfit(&self, text: &Text) -> Option<&'static str> {
        if self.entry >= self.end {
            return Some("nothing behind the entry");
        }
        let first = decode(self.entry, text.at(self.entry, LONGEST));
        match first.first()?.mnemonic() {
            Mnemonic::Int3 | Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => Some("int3 or ud"),
            _ => None,
        }
    }
}

/// The outcome of a probe on each function.
#[derive(Debug)]
pub struct Account<'a> {
    text: &'a Text,
    /// All functions, by their places.
    places: HashMap<&'a str, &'a Function>,
    /// Functions that took a probe.
    pub probed: usize,
    /// Functions whose entry is in the blacklist, by kind.
    pub listed: Kinds,
    /// Functions that were refused for another reason, by reason.
    pub refused: Kinds,
}

impl<'a> Account<'a> {
    /// An account without any outcome yet.
    pub fn new(functions: &'a [Function], text: &'a Text) -> Self {
        let places = functions.iter().map(|it| (&*it.place, it));
        Self {
            text,
            places: places.collect(),
            probed: 0,
            listed: Kinds::default(),
            refused: Kinds::default(),
        }
    }

    /// Counts a function of the blacklist under the kinds that the list gives for it.
    pub fn list(&mut self, function: &Function) {
        let kind = function.listed(self.text).next();
        self.listed
            .add(kind.map_or("", |entry| words::blacklist_kind(entry.kind())));
    }

    /// Takes over the outcomes of functions that were offered by their places. Fails if a probe isn't at its function's
    /// entry, or if one is refused for a reason that neither the blacklist nor the code has.
    ///
    /// # Errors
    /// As said.
    pub fn add(&mut self, offered: &Offered) -> Result<(), Failure> {
        let at = |place: &str| self.places.get(place).copied();
        for (place, probe) in &offered.taken {
            let function = at(place).ok_or_else(|| wrong!("{place} was not offered"))?;
            check_eq!(probe.address, function.entry, "the entry of {place}");
            self.probed += 1;
        }
        for (place, message) in &offered.refused {
            let function = at(place).ok_or_else(|| wrong!("{place} was not offered"))?;
            let mut listed = function.listed(self.text);
            let kind = listed.find(|entry| {
                let kind = words::blacklist_kind(entry.kind());
                message.contains(&format!("({kind}): {}", entry.reason))
            });
            if let Some(entry) = kind {
                self.listed.add(words::blacklist_kind(entry.kind()));
                continue;
            }
            let why = function.unfit(self.text);
            let why = why.ok_or_else(|| wrong!("nothing at {place} says why: {message}"))?;
            self.refused.add(why);
        }
        Ok(())
    }

    /// Fails unless each of `functions` functions was accounted for once.
    ///
    /// # Errors
    /// As said.
    pub fn check(&self, functions: usize) -> Result<(), Failure> {
        check_eq!(self.places.len(), functions, "places of functions");
        let all = self.probed + self.listed.total() + self.refused.total();
        check_eq!(
            all,
            functions,
            "functions probed, listed and refused: {self}"
        );
        Ok(())
    }
}

impl fmt::Display for Account<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            probed,
            listed,
            refused,
            ..
        } = self;
        write!(
            f,
            "{probed} probed, {} listed ({listed}), {} refused ({refused})",
            listed.total(),
            refused.total()
        )
    }
}

/// Numbers of functions by kind.
#[derive(Debug, Default)]
pub struct Kinds(BTreeMap<String, usize>);

impl Kinds {
    /// Adds one of this kind.
    pub fn add(&mut self, kind: &str) {
        *self.0.entry(kind.to_owned()).or_default() += 1;
    }

    /// All of them.
    pub fn total(&self) -> usize {
        self.0.values().sum()
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, (kind, count)) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{kind} {count}")?;
        }
        Ok(())
    }
}
