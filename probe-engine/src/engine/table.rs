//! The sites that have a breakpoint, and the text under them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::addr::{GuestPhysAddr, GuestVirtAddr, ProbeId};
use crate::emulate::{Plan, Touched};
use crate::guest::{GuestMemory, MemoryError};
use crate::image_map::ImageMap;
use crate::probe::{ProbeInfo, ProbeState};

/// The one-byte breakpoint instruction (SDM vol. 2, INT3).
pub(super) const INT3: u8 = 0xcc;

/// A registered probe: what doesn't change, and its counters.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) id: ProbeId,
    /// Its counters and state are those of the registration.
    fixed: ProbeInfo,
    hits: AtomicU64,
    gone: AtomicBool,
}

impl Probe {
    pub(super) fn new(info: ProbeInfo) -> Self {
        Self {
            id: info.id,
            fixed: info,
            hits: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.fixed.name
    }

    pub(super) fn address(&self) -> GuestVirtAddr {
        self.fixed.address
    }

    pub(super) fn count(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(super) fn info(&self) -> ProbeInfo {
        let gone = self.gone.load(Ordering::Relaxed);
        ProbeInfo {
            hits: self.hits.load(Ordering::Relaxed),
            state: if gone {
                ProbeState::Gone
            } else {
                ProbeState::Armed
            },
            ..self.fixed.clone()
        }
    }
}

/// How a site's instruction is executed.
#[derive(Debug, Clone)]
pub(super) enum Way {
    Emulate(Plan),
    Step { touched: Touched, repeats: bool },
}

/// An address with a breakpoint of ours.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) virt: GuestVirtAddr,
    pub(super) phys: GuestPhysAddr,
    /// The byte under the int3.
    pub(super) original: u8,
    pub(super) way: Way,
    pub(super) probes: Vec<Arc<Probe>>,
    /// The engine itself waits for this instruction.
    pub(super) milestone: bool,
}

impl Site {
    pub(super) fn is_unused(&self) -> bool {
        self.probes.is_empty() && !self.milestone
    }

    /// Writes the int3, if the text is still the one that was decoded.
    pub(super) fn plant(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        self.replace(memory, self.original, INT3)
    }

    /// Puts the original byte back, unless the guest has overwritten the int3:
    /// then the text is the guest's.
    pub(super) fn lift(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        self.replace(memory, INT3, self.original)
    }

    fn replace(&self, memory: &dyn GuestMemory, from: u8, to: u8) -> Result<(), MemoryError> {
        let mut byte = [0];
        memory.read(self.phys, &mut byte)?;
        if byte == [from] {
            memory.write(self.phys, &[to])
        } else {
            Ok(())
        }
    }
}

/// Everything that a trap has to look at. Never changes once published.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub(super) image: Option<ImageMap>,
    sites: HashMap<u64, Arc<Site>, BuildHasherDefault<AddressHasher>>,
    /// Virtual addresses of the sites by their physical ones.
    by_phys: HashMap<u64, u64, BuildHasherDefault<AddressHasher>>,
}

impl Table {
    pub(super) fn new(image: Option<ImageMap>) -> Self {
        Self {
            image,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sites.is_empty()
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

    pub(super) fn insert(&mut self, site: Site) {
        self.by_phys.insert(site.phys.0, site.virt.0);
        self.sites.insert(site.virt.0, Arc::new(site));
    }

    pub(super) fn remove(&mut self, at: GuestVirtAddr) {
        if let Some(site) = self.sites.remove(&at.0) {
            self.by_phys.remove(&site.phys.0);
        }
    }

    /// The text at `at` as it is without our breakpoints; fewer than `len` bytes
    /// where the image ends before. `None` outside the image.
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
        for (address, byte) in (at.0..).zip(&mut bytes) {
            if let Some(site) = self.sites.get(&address).filter(|_| *byte == INT3) {
                *byte = site.original;
            }
        }
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
