//! Sites by their addresses.

use std::hint::black_box;
use std::sync::Arc;

use guest_state::GuestVirtAddr;
use rustc_hash::FxHashMap;

use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::Site;

/// The sites of a table, by their virtual addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct SiteMap(FxHashMap<u64, Entry>);

/// A site, with what [`SiteMap::fetch`] reads at the same time.
#[derive(Debug, Clone)]
struct Entry {
    site: Arc<Site>,
    /// The first of the site's active probes.
    probe: Option<Arc<Probe>>,
}

impl Entry {
    fn new(site: Arc<Site>) -> Self {
        let probe = site.active.first().cloned();
        Self { site, probe }
    }
}

impl SiteMap {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, at: GuestVirtAddr) -> Option<&Arc<Site>> {
        Some(&self.0.get(&at.0)?.site)
    }

    /// As [`get`](Self::get), for a hit, which looks at the site and at its probe: with thousands of sites neither is
    /// in the processor's caches. The probe is read here, so that the processor fetches the two side by side and not
    /// one after the other.
    pub(crate) fn fetch(&self, at: GuestVirtAddr) -> Option<&Arc<Site>> {
        let Entry { site, probe } = self.0.get(&at.0)?;
        black_box(probe.as_ref().is_some_and(|probe| probe.is_removed()));
        Some(site)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<Site>> + Clone {
        self.0.values().map(|entry| &entry.site)
    }

    /// Puts a site in, or in the place of the one at its address.
    pub(crate) fn insert(&mut self, site: Site) {
        self.0.insert(site.virt.0, Entry::new(Arc::new(site)));
    }

    pub(crate) fn remove(&mut self, at: GuestVirtAddr) -> Option<Arc<Site>> {
        Some(self.0.remove(&at.0)?.site)
    }

    /// Puts what `change` makes of a site in its place, where it makes anything of it.
    pub(crate) fn replace(&mut self, mut change: impl FnMut(&Site) -> Option<Site>) {
        for entry in self.0.values_mut() {
            if let Some(next) = change(&entry.site) {
                *entry = Entry::new(Arc::new(next));
            }
        }
    }
}
