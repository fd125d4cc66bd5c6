//! The guest's text between two tables: what is written into it, and what is taken out.

use std::sync::Arc;

use guest_kernel::kprobes::GuestKprobes;
use guest_state::x86_64::INT3;
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError};

use crate::engine::sites::prefetched::prefetched;
use crate::engine::sites::site::Site;

/// Armed sites of one table that have other text in another one.
#[derive(Debug)]
pub(crate) struct Patches {
    /// All of them, in the order of their addresses.
    pub(crate) sites: Vec<Arc<Site>>,
    /// Those of which only an int3 is in the text.
    int3s: Vec<Int3>,
    /// The others.
    others: Vec<Arc<Site>>,
}

/// What it takes to write an int3 without a look at its site: a batch may have thousands, and looking at each of these
/// takes longer than writing.
#[derive(Debug)]
struct Int3 {
    virt: GuestVirtAddr,
    phys: GuestPhysAddr,
    original: u8,
}

impl Patches {
    /// Makes the patches of sites that are in the order of their addresses.
    pub(crate) fn new(sites: Vec<Arc<Site>>) -> Self {
        let (mut int3s, mut others) = (Vec::new(), Vec::new());
        for site in &sites {
            if site.has_int3() && !site.wants_post() {
                int3s.push(Int3 {
                    virt: site.virt,
                    phys: site.phys,
                    original: site.original,
                });
            } else {
                others.push(Arc::clone(site));
            }
        }
        Self {
            sites,
            int3s,
            others,
        }
    }

    /// The sites that may be jumps.
    pub(crate) fn others(&self) -> &[Arc<Site>] {
        &self.others
    }

    /// Writes the int3s and jumps, where the text is still the one that was decoded and `is_free` holds.
    ///
    /// # Errors
    /// Text that is no memory; then everything is as before.
    pub(crate) fn plant(
        &self,
        memory: &dyn GuestMemory,
        is_free: impl Fn(GuestVirtAddr) -> bool,
    ) -> Result<(), MemoryError> {
        let planted = self.try_plant(memory, &is_free);
        if planted.is_err() {
            self.try_lift(memory, &is_free, None)?;
        }
        planted
    }

    /// Puts the original text back, where the text is ours and `is_free` holds. Returns the sites whose jumps stay, as
    /// the guest holds them.
    ///
    /// # Errors
    /// As of [`Self::plant`].
    pub(crate) fn lift(
        &self,
        memory: &dyn GuestMemory,
        is_free: impl Fn(GuestVirtAddr) -> bool,
        kprobes: Option<&GuestKprobes>,
    ) -> Result<Vec<Arc<Site>>, MemoryError> {
        let lifted = self.try_lift(memory, &is_free, kprobes);
        if lifted.is_err() {
            self.try_plant(memory, &is_free)?;
        }
        lifted
    }

    fn int3s<'a>(&'a self, memory: &'a dyn GuestMemory) -> impl Iterator<Item = &'a Int3> {
        prefetched(&self.int3s, memory, |int3| int3.phys)
    }

    fn try_plant(
        &self,
        memory: &dyn GuestMemory,
        is_free: &dyn Fn(GuestVirtAddr) -> bool,
    ) -> Result<(), MemoryError> {
        for int3 in self.int3s(memory).filter(|it| is_free(it.virt)) {
            memory.replace(int3.phys, int3.original, INT3)?;
        }
        let mut others = self.others.iter().filter(|it| is_free(it.virt));
        others.try_for_each(|site| site.plant(memory))
    }

    fn try_lift(
        &self,
        memory: &dyn GuestMemory,
        is_free: &dyn Fn(GuestVirtAddr) -> bool,
        kprobes: Option<&GuestKprobes>,
    ) -> Result<Vec<Arc<Site>>, MemoryError> {
        for int3 in self.int3s(memory).filter(|it| is_free(it.virt)) {
            memory.replace(int3.phys, INT3, int3.original)?;
        }
        let mut held = Vec::new();
        for site in self.others.iter().filter(|it| is_free(it.virt)) {
            if !lift(site, memory, kprobes)? {
                held.push(Arc::clone(site));
            }
        }
        Ok(held)
    }
}

/// As [`Site::lift`], but a jump stays in the text if a kprobe of the guest's there has read it.
pub(crate) fn lift(
    site: &Site,
    memory: &dyn GuestMemory,
    kprobes: Option<&GuestKprobes>,
) -> Result<bool, MemoryError> {
    match kprobes {
        Some(kprobes) if site.jump().is_some() && has_read(kprobes, site) => Ok(false),
        _ => site.lift(memory),
    }
}

/// Returns true if a kprobe of the guest's has saved the byte that is at the site, or may be about to.
pub(crate) fn has_read(kprobes: &GuestKprobes, site: &Site) -> bool {
    kprobes.changing || kprobes.on(site.virt).is_some()
}
