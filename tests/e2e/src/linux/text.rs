//! The kernel's text as a whole: what it was, and what has changed in it.

use std::ops::Range;

use vmprobe_client::v1::BlacklistEntry;

use super::guest::Guest;
use super::whole::blacklist;
use crate::test::{Failure, wrong};

/// Reasons why the kernel writes to its text while it runs, as the product's list names them.
const PATCHED: [&str; 6] = [
    "ftrace",
    "ftrace-trampoline",
    "jump-label",
    "static-call",
    "static-call-trampoline",
    "smp-lock",
];
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
}
