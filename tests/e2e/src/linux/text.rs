//! The kernel's text as a whole: what it was, and what has changed in it.

use std::collections::BTreeMap;
use std::ops::Range;

use vmprobe_client::v1::BlacklistEntry;

use super::code::decode;
use super::guest::Guest;
use super::whole::blacklist;
use crate::test::{Failure, check, wrong};

/// Reasons why the kernel writes to its text while it runs, as the product's list names them.
const PATCHED: [&str; 6] = [
    "ftrace",
    "ftrace-trampoline",
    "jump-label",
    "static-call",
    "static-call-trampoline",
    "smp-lock",
];
/// First bytes of a breakpoint, which the kernel leaves nowhere, and of jumps and calls with a
/// displacement of 32 bits (Intel SDM vol. 2).
const INT3: u8 = 0xcc;
const DIRECT: [u8; 2] = [0xe8, 0xe9];
/// The lock prefix, and what the kernel puts in its place (`alternatives_smp_lock` in
/// `arch/x86/kernel/alternative.c`).
const LOCK: [u8; 2] = [0xf0, 0x3e];

/// The kernel's text at one time, and what the product's list says that the kernel patches in it.
#[derive(Debug)]
pub struct Text {
    /// Where it begins.
    pub start: u64,
    /// All of it.
    pub bytes: Vec<u8>,
    /// What can't be probed there.
    pub blacklist: Vec<BlacklistEntry>,
    /// Where the kernel writes, by address: the end, and why.
    sites: Vec<(Range<u64>, String)>,
}

/// Sites that the kernel has changed, by reason.
pub type Changes = BTreeMap<String, usize>;

impl Text {
    /// As it is now.
    ///
    /// # Errors
    /// If it can't be read.
    pub async fn of(guest: &Guest) -> Result<Self, Failure> {
        let start = guest.symbol("_stext").await?;
        let length = (guest.symbol("_etext").await? - start) as usize;
        let blacklist = blacklist(guest, "").await?;
        let sites = blacklist
            .iter()
            .filter(|entry| PATCHED.contains(&&*entry.kind))
            .map(|entry| (entry.start..entry.end, entry.kind.clone()));
        let mut sites: Vec<_> = sites.collect();
        sites.sort_unstable_by_key(|(range, _)| (range.start, range.end));
        Ok(Self {
            start,
            bytes: guest.memory(start, length).await?,
            blacklist,
            sites,
        })
    }

    /// Its addresses.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }

    /// The bytes from an address on, at most so many.
    pub fn at(&self, address: u64, length: usize) -> &[u8] {
        let from = (address - self.start) as usize;
        &self.bytes[from.min(self.bytes.len())..(from + length).min(self.bytes.len())]
    }

    /// Fails if a byte is another now, unless it is of a site that the kernel patches while it runs, and
    /// the site as a whole is what the kernel makes of such a site. Which sites have changed.
    ///
    /// # Errors
    /// As said.
    pub async fn unchanged(&self, guest: &Guest) -> Result<Changes, Failure> {
        let now = guest.memory(self.start, self.bytes.len()).await?;
        self.compare(&now)
    }

    /// The same with text that has been read already.
    ///
    /// # Errors
    /// As said.
    pub fn compare(&self, now: &[u8]) -> Result<Changes, Failure> {
        let mut changes = Changes::new();
        for (site, kind) in self.changed(now)? {
            check!(
                self.is_whole(site, kind, now),
                "{kind} site at {:#x} was {:02x?}, and is now {:02x?}, which the kernel doesn't make of it",
                site.start,
                self.at(site.start, (site.end - site.start) as usize),
                &now[(site.start - self.start) as usize..(site.end - self.start) as usize]
            );
            *changes.entry(kind.to_owned()).or_default() += 1;
        }
        Ok(changes)
    }

    /// The sites that have changed. Fails at a byte that is of none.
    ///
    /// # Errors
    /// As said.
    pub fn changed(&self, now: &[u8]) -> Result<Vec<(&Range<u64>, &str)>, Failure> {
        /// Compared at a time: what has changed is rare.
        const BLOCK: usize = 4096;
        let mut found: Vec<(&Range<u64>, &str)> = Vec::new();
        let blocks = self.bytes.chunks(BLOCK).zip(now.chunks(BLOCK));
        for (index, (old, new)) in blocks.enumerate() {
            if old == new {
                continue;
            }
            let first = self.start + (index * BLOCK) as u64;
            for (address, (old, new)) in (first..).zip(old.iter().zip(new)) {
                if old == new {
                    continue;
                }
                let (site, kind) = self.site(address).ok_or_else(|| {
                    wrong!(
                        "{address:#x} was {old:#x} and is now {new:#x}, where the list says of nothing \
                         that the kernel patches it"
                    )
                })?;
                if found.last().is_none_or(|(last, _)| *last != site) {
                    found.push((site, kind));
                }
            }
        }
        Ok(found)
    }

    /// What the kernel patches at an address.
    fn site(&self, address: u64) -> Option<(&Range<u64>, &str)> {
        let before = self
            .sites
            .partition_point(|(site, _)| site.start <= address);
        // They may overlap; a trampoline's range is long.
        let mut candidates = self.sites[..before].iter().rev();
        let found = candidates.find(|(site, _)| site.contains(&address))?;
        Some((&found.0, &found.1))
    }

    /// Whether a site that has changed is what the kernel makes of it: whole instructions, no breakpoint
    /// at their beginning, and no branch to where the product has code.
    fn is_whole(&self, site: &Range<u64>, kind: &str, now: &[u8]) -> bool {
        let bytes = &now[(site.start - self.start) as usize..(site.end - self.start) as usize];
        if kind == "smp-lock" {
            return bytes.len() == 1 && LOCK.contains(&bytes[0]);
        }
        let code = decode(site.start, bytes);
        let length: usize = code.iter().map(iced_x86::Instruction::len).sum();
        let first = code.first().map(iced_x86::Instruction::len);
        let leads_away = DIRECT.contains(&bytes[0]) && code[0].near_branch_target() < self.start;
        // Behind a return the kernel fills a static call up with breakpoints.
        length == bytes.len() && first.is_some() && bytes[0] != INT3 && !leads_away
    }
}
