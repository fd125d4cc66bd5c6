//! The kernel's text as a whole: what it was, and what has changed in it.

use std::collections::BTreeMap;
use std::ops::Range;

use vmprobe_client::v1::BlacklistEntry;
use vmprobe_client::words;

use super::code::decode;
use super::guest::{Guest, VM};
use super::labels::Label;
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
/// First bytes of a breakpoint, which the kernel leaves nowhere, and of jumps and calls with a displacement of 32 bits
/// (Intel SDM vol. 2).
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
    /// What can't be probed there, sorted by start.
    pub blacklist: Vec<BlacklistEntry>,
    /// For each entry, the largest end of it and of all entries before it. It only grows, so it can be searched.
    reach: Vec<u64>,
}

/// Sites that the kernel has changed, by reason.
pub type Changes = BTreeMap<String, usize>;

impl Text {
    /// Reads the text as it is now.
    ///
    /// # Errors
    /// If it can't be read.
    pub async fn of(guest: &Guest) -> Result<Self, Failure> {
        let start = guest.symbol("_stext").await?;
        let length = (guest.symbol("_etext").await? - start) as usize;
        let mut blacklist = blacklist(guest, "").await?;
        blacklist.sort_by_key(|entry| (entry.start, entry.end));
        let ends = blacklist.iter().scan(0, |end: &mut u64, entry| {
            *end = entry.end.max(*end);
            Some(*end)
        });
        Ok(Self {
            start,
            bytes: guest.memory(start, length).await?,
            reach: ends.collect(),
            blacklist,
        })
    }

    /// Its addresses.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes.len() as u64
    }

    /// Returns the bytes from an address on, at most `length`.
    pub fn at(&self, address: u64, length: usize) -> &[u8] {
        let from = (address - self.start) as usize;
        &self.bytes[from.min(self.bytes.len())..(from + length).min(self.bytes.len())]
    }

    /// Returns what can't be probed in a range, sorted by start.
    pub fn listed(&self, range: Range<u64>) -> impl Iterator<Item = &BlacklistEntry> {
        let first = self.reach.partition_point(|end| *end <= range.start);
        let rest = self.blacklist[first..].iter();
        rest.take_while(move |entry| entry.start < range.end)
            .filter(move |entry| entry.end > range.start)
    }

    /// Fails if a byte has changed, unless it belongs to a jump label whose static key the kernel has switched since,
    /// and the whole label is what the key requires. Returns how many labels have changed. This is for guests that have
    /// not traced or patched their kernel meanwhile.
    ///
    /// # Errors
    /// As said.
    pub async fn untouched(&self, guest: &Guest) -> Result<usize, Failure> {
        // The guest is paused, so that no key is switched between reading the text and reading the key.
        guest.client.pause_vm(VM).await?;
        let now = guest.memory(self.start, self.bytes.len()).await?;
        let changed = self.changed(&now)?;
        if !changed.is_empty() {
            let labels = Label::all(guest).await?;
            for (site, kind) in &changed {
                let bytes = &now[self.offsets(site)];
                let label = labels.get(&site.start);
                let label = label.ok_or_else(|| {
                    let was = &self.bytes[self.offsets(site)];
                    wrong!(
                        "{kind} site at {:#x} was {was:02x?}, and is now {bytes:02x?}",
                        site.start
                    )
                })?;
                label.check(guest, site.start, bytes).await?;
            }
        }
        guest.client.resume_vm(VM).await?;
        Ok(changed.len())
    }

    /// Fails if a byte has changed, unless it belongs to a site that the kernel patches while it runs, and the whole
    /// site is what the kernel makes of such a site. Returns which sites have changed.
    ///
    /// # Errors
    /// As said.
    pub async fn unchanged(&self, guest: &Guest) -> Result<Changes, Failure> {
        let now = guest.memory(self.start, self.bytes.len()).await?;
        self.compare(&now)
    }

    /// As [`unchanged`](Self::unchanged), with text that has been read already.
    ///
    /// # Errors
    /// As said.
    pub fn compare(&self, now: &[u8]) -> Result<Changes, Failure> {
        let mut changes = Changes::new();
        for (site, kind) in self.changed(now)? {
            check!(
                self.is_whole(&site, kind, now),
                "{kind} site at {:#x} was {:02x?}, and is now {:02x?}, which the kernel doesn't make of it",
                site.start,
                &self.bytes[self.offsets(&site)],
                &now[self.offsets(&site)]
            );
            *changes.entry(kind.to_owned()).or_default() += 1;
        }
        Ok(changes)
    }

    /// Returns the sites that have changed. Fails at a changed byte that belongs to no site.
    ///
    /// # Errors
    /// As said.
    pub fn changed(&self, now: &[u8]) -> Result<Vec<(Range<u64>, &str)>, Failure> {
        /// Bytes compared at a time: changes are rare.
        const BLOCK: usize = 4096;
        let mut found: Vec<(Range<u64>, &str)> = Vec::new();
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

    /// Returns the site that the kernel patches at an address, and its kind.
    fn site(&self, address: u64) -> Option<(Range<u64>, &str)> {
        // Sites may overlap, as a trampoline's range is long.
        let at = self.listed(address..address + 1);
        let found = at
            .filter(|entry| PATCHED.contains(&words::blacklist_kind(entry.kind())))
            .last()?;
        Some((found.start..found.end, words::blacklist_kind(found.kind())))
    }

    /// Converts a range of addresses into one of offsets in the text.
    fn offsets(&self, range: &Range<u64>) -> Range<usize> {
        (range.start - self.start) as usize..(range.end - self.start) as usize
    }

    /// Returns true if a site that has changed is what the kernel makes of it: whole instructions, no breakpoint at
    /// their beginning, and no branch to where the product has code.
    fn is_whole(&self, site: &Range<u64>, kind: &str, now: &[u8]) -> bool {
        let bytes = &now[self.offsets(site)];
        if kind == "smp-lock" {
            return bytes.len() == 1 && LOCK.contains(&bytes[0]);
        }
        let code = decode(site.start, bytes);
        let length: usize = code.iter().map(iced_x86::Instruction::len).sum();
        let first = code.first().map(iced_x86::Instruction::len);
        let leads_away = DIRECT.contains(&bytes[0]) && code[0].near_branch_target() < self.start;
        // Behind a return, the kernel fills a static call with int3s.
        length == bytes.len() && first.is_some() && bytes[0] != INT3 && !leads_away
    }
}
