//! What traps look at: the sites, the watched data, and the text under the breakpoints.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::record::Probe;
use super::site::{INT3, Site};
use super::watch::Watchpoint;
use crate::addr::{GuestPhysAddr, GuestVirtAddr};
use crate::guest::{GuestMemory, MemoryError};
use crate::image_map::ImageMap;

/// Everything that a trap has to look at. Never changes once published.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub(super) image: Option<ImageMap>,
    sites: HashMap<u64, Arc<Site>, BuildHasherDefault<AddressHasher>>,
    /// Virtual addresses of the sites by their physical ones.
    by_phys: HashMap<u64, u64, BuildHasherDefault<AddressHasher>>,
    /// Data in debug registers, by the number of the register, and the probes there.
    pub(super) watched: Vec<(Watchpoint, Vec<Arc<Probe>>)>,
    /// All breakpoints that users asked for are out of the text.
    pub(super) disarmed: bool,
}

impl Table {
    pub(super) fn new(image: Option<ImageMap>) -> Self {
        Self {
            image,
            ..Self::default()
        }
    }

    pub(super) fn has_armed(&self) -> bool {
        self.sites.values().any(|site| site.armed)
    }

    pub(super) fn len(&self) -> usize {
        self.sites.len()
    }

    pub(super) fn site(&self, at: GuestVirtAddr) -> Option<&Arc<Site>> {
        self.sites.get(&at.0)
    }

    pub(super) fn site_at_phys(&self, at: GuestPhysAddr) -> Option<&Arc<Site>> {
        self.sites.get(self.by_phys.get(&at.0)?)
    }

    pub(super) fn sites(&self) -> impl Iterator<Item = &Arc<Site>> {
        self.sites.values()
    }

    /// Puts a site in, or in the place of the one at its address.
    pub(super) fn insert(&mut self, site: Site) {
        let site = site.armed_if_wanted(self.disarmed);
        self.by_phys.insert(site.phys.0, site.virt.0);
        self.sites.insert(site.virt.0, Arc::new(site));
    }

    /// Puts a probe on an instruction.
    pub(super) fn add(&mut self, site: Site, probe: Arc<Probe>) {
        let mut site = match self.site(site.virt) {
            Some(known) => Site::clone(known),
            None => site,
        };
        site.probes.push(probe);
        self.insert(site);
    }

    pub(super) fn remove(&mut self, at: GuestVirtAddr) {
        if let Some(site) = self.sites.remove(&at.0) {
            self.by_phys.remove(&site.phys.0);
        }
    }

    /// Changes the site at an address; one that nobody uses any more is removed.
    pub(super) fn change(&mut self, at: GuestVirtAddr, change: impl FnOnce(&mut Site)) {
        let Some(site) = self.sites.get(&at.0) else {
            return;
        };
        let mut site = Site::clone(site);
        change(&mut site);
        if site.is_unused() {
            self.remove(at);
        } else {
            self.insert(site);
        }
    }

    /// Takes over what the probes and the switch now say.
    pub(super) fn rearm(&mut self) {
        let disarmed = self.disarmed;
        for site in self.sites.values_mut() {
            let next = Site::clone(site).armed_if_wanted(disarmed);
            if (next.armed, next.silent) != (site.armed, site.silent) {
                *site = Arc::new(next);
            }
        }
    }

    /// Puts the original bytes into text that was read at `at`.
    pub(super) fn unmask(&self, at: GuestVirtAddr, bytes: &mut [u8]) {
        for (address, byte) in (at.0..).zip(bytes) {
            if *byte == INT3
                && let Some(site) = self.sites.get(&address).filter(|site| site.armed)
            {
                *byte = site.original;
            }
        }
    }

    /// The kernel's text at `at` as it is without our breakpoints; fewer than
    /// `len` bytes where the image ends before. `None` outside the image.
    pub(super) fn text(
        &self,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
        len: usize,
    ) -> Option<Result<Vec<u8>, MemoryError>> {
        let (phys, left) = self.image.as_ref()?.to_phys(at)?;
        let mut bytes = vec![0; len.min(usize::try_from(left).unwrap_or(usize::MAX))];
        if let Err(error) = memory.read(phys, &mut bytes) {
            return Some(Err(error));
        }
        self.unmask(at, &mut bytes);
        Some(Ok(bytes))
    }
}

/// Hashes addresses, which are no secret and come from our own table: one
/// multiplication by 2^64 over the golden ratio, and its well-mixed upper half.
#[derive(Debug, Default, Clone, Copy)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_right(32);
    }
}
