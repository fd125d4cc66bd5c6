//! Probes that are added together.

use std::sync::Arc;

use guest_state::GuestVirtAddr;
use rustc_hash::FxHashMap;

use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::{Probes, Site};
use crate::engine::sites::table::Table;

/// Probes by the instructions that they are on: a table makes each of these sites anew only once, however many probes
/// are added to it.
#[derive(Debug, Default)]
pub(crate) struct Additions {
    /// In the order in which they were added; each site is as it is without these probes.
    sites: Vec<(Site, Probes)>,
    numbers: FxHashMap<GuestVirtAddr, usize>,
}

impl Additions {
    pub(crate) fn add(&mut self, site: Site, probe: Arc<Probe>) {
        let next = self.sites.len();
        let number = *self.numbers.entry(site.virt).or_insert(next);
        if number == next {
            self.sites.push((site, Probes::new()));
        }
        if let Some((_, probes)) = self.sites.get_mut(number) {
            probes.push(probe);
        }
    }

    pub(crate) fn put_into(self, table: &mut Table) {
        for (site, probes) in self.sites {
            table.add(site, probes);
        }
    }
}
