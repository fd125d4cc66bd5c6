//! Sites by their addresses.

use std::hash::BuildHasher;
use std::sync::Arc;

use guest_state::GuestVirtAddr;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use rustc_hash::FxBuildHasher;

use crate::engine::sites::plain_site::PlainSite;
use crate::engine::sites::site::Site;

/// The sites of a table, by their virtual addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct SiteMap(HashTable<Slot>);

/// A site. It is one line of the processor's caches, which is all that a hit of a plain site has to fetch.
#[derive(Debug, Clone)]
#[repr(align(64))]
struct Slot {
    at: GuestVirtAddr,
    site: Arc<Site>,
    plain: Option<PlainSite>,
}

impl Slot {
    fn new(site: Site) -> Self {
        Self {
            at: site.virt,
            plain: PlainSite::of(&site),
            site: Arc::new(site),
        }
    }
}

fn hash(at: GuestVirtAddr) -> u64 {
    FxBuildHasher.hash_one(at.0)
}

impl SiteMap {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn slot(&self, at: GuestVirtAddr) -> Option<&Slot> {
        self.0.find(hash(at), |slot| slot.at == at)
    }

    pub(crate) fn get(&self, at: GuestVirtAddr) -> Option<&Arc<Site>> {
        Some(&self.slot(at)?.site)
    }

    /// What a hit looks at where a plain site is, and the site.
    pub(crate) fn plain(&self, at: GuestVirtAddr) -> Option<(&PlainSite, &Arc<Site>)> {
        let slot = self.slot(at)?;
        Some((slot.plain.as_ref()?, &slot.site))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<Site>> + Clone {
        self.0.iter().map(|slot| &slot.site)
    }

    /// Puts a site in, or in the place of the one at its address.
    pub(crate) fn insert(&mut self, site: Site) {
        let at = site.virt;
        let entry = self
            .0
            .entry(hash(at), |slot| slot.at == at, |slot| hash(slot.at));
        match entry {
            Entry::Occupied(mut there) => *there.get_mut() = Slot::new(site),
            Entry::Vacant(free) => {
                free.insert(Slot::new(site));
            }
        }
    }

    pub(crate) fn remove(&mut self, at: GuestVirtAddr) -> Option<Arc<Site>> {
        let there = self.0.find_entry(hash(at), |slot| slot.at == at).ok()?;
        Some(there.remove().0.site)
    }

    /// Puts what `change` makes of a site in its place, where it makes anything of it.
    pub(crate) fn replace(&mut self, mut change: impl FnMut(&Site) -> Option<Site>) {
        for slot in self.0.iter_mut() {
            if let Some(next) = change(&slot.site) {
                *slot = Slot::new(next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hit_of_a_plain_site_looks_at_is_one_line_of_the_cache() {
        assert_eq!(size_of::<Slot>(), 64);
    }
}
