//! Sites by their addresses.

use std::sync::Arc;

use guest_state::GuestVirtAddr;
use hashbrown::HashTable;

use crate::engine::sites::plain_map::{Places, PlainMap, hash};
use crate::engine::sites::plain_site::PlainSite;
use crate::engine::sites::site::Site;

/// The sites of a table, by their virtual addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct SiteMap {
    sites: HashTable<(GuestVirtAddr, Arc<Site>)>,
    /// What hits look at, of the plain sites.
    plain: PlainMap,
}

impl SiteMap {
    pub(crate) fn len(&self) -> usize {
        self.sites.len()
    }

    pub(crate) fn get(&self, at: GuestVirtAddr) -> Option<&Arc<Site>> {
        let found = self.sites.find(hash(at), |(there, _)| *there == at);
        found.map(|(_, site)| site)
    }

    /// What a hit looks at where a plain site is.
    pub(crate) fn plain(&self, at: GuestVirtAddr) -> Option<&PlainSite> {
        self.plain.get(at)
    }

    /// Where hits look for plain sites.
    pub(crate) fn places(&self) -> Places {
        self.plain.places()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<Site>> + Clone {
        self.sites.iter().map(|(_, site)| site)
    }

    /// Puts a site in, or in the place of the one at its address.
    pub(crate) fn insert(&mut self, site: Site) {
        let at = site.virt;
        self.plain.set(at, PlainSite::of(&site));
        let is_there = |entry: &(GuestVirtAddr, Arc<Site>)| entry.0 == at;
        let entry = self.sites.entry(hash(at), is_there, |entry| hash(entry.0));
        entry.insert((at, Arc::new(site)));
    }

    pub(crate) fn remove(&mut self, at: GuestVirtAddr) -> Option<Arc<Site>> {
        let there = self.sites.find_entry(hash(at), |(there, _)| *there == at);
        let ((_, site), _) = there.ok()?.remove();
        self.plain.set(at, None);
        Some(site)
    }

    /// Replaces each site by what `change` makes of it; where that is `None`, the site stays.
    pub(crate) fn replace(&mut self, mut change: impl FnMut(&Site) -> Option<Site>) {
        for (at, site) in &mut self.sites {
            if let Some(next) = change(site) {
                self.plain.set(*at, PlainSite::of(&next));
                *site = Arc::new(next);
            }
        }
    }
}
