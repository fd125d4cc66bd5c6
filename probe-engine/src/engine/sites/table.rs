//! What traps look at: the sites, the watched data, and the text under the breakpoints.

use std::sync::Arc;

use guest_kernel::ImageMap;
use guest_kernel::kprobes::GuestKprobes;
use guest_state::x86_64::{INT3, JMP_REL32, MAX_INSTRUCTION_LEN};
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError, Watchpoint};
use rustc_hash::FxHashMap;

use crate::engine::sites::jump::{Jump, Verdict};
use crate::engine::sites::plain_map::Places;
use crate::engine::sites::plain_site::PlainSite;
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::{Milestone, Probes, Site};
use crate::engine::sites::site_map::SiteMap;
use crate::engine::sites::switches::Switches;

/// Everything that a trap has to look at. Never changes once published.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(crate) image: ImageMap,
    /// Whether the kernel has freed its init text.
    pub(crate) init_freed: bool,
    sites: SiteMap,
    /// Where a jump's displacement has an int3: the site that the jump is at, and how far the int3 is from there.
    tripwires: FxHashMap<u64, (u64, u8)>,
    /// Sites whose jump has gone, or is to go, and couldn't be taken out of the text, as the guest has an int3 or a
    /// jump of its own over it: the guest has saved ours, and will put it back.
    held: Vec<Arc<Site>>,
    /// True if a site is a jump. This field and the next two are as of when the table was settled.
    has_jumps: bool,
    /// True if an int3 of ours is in the text, or a vCPU may come to one in a detour.
    has_int3: bool,
    /// Whether the engine waits for modules to come and go.
    waits_for_modules: bool,
    /// Virtual addresses of the sites by their physical ones.
    by_phys: FxHashMap<u64, u64>,
    /// Data in debug registers, by the number of the register, and the probes there.
    pub(crate) watched: Vec<(Watchpoint, Vec<Arc<Probe>>)>,
    pub(crate) switches: Switches,
}

impl Table {
    pub(crate) fn new(image: ImageMap) -> Self {
        Self {
            image,
            ..Self::default()
        }
    }

    /// Returns true if a jump of ours is in the text.
    pub(crate) fn has_jumps(&self) -> bool {
        self.has_jumps
    }

    /// Returns true if an int3 of ours is in the text, or a vCPU may come to one in a detour.
    pub(crate) fn has_int3(&self) -> bool {
        self.has_int3
    }

    /// Returns true if the engine is told when modules come and go.
    pub(crate) fn waits_for_modules(&self) -> bool {
        self.waits_for_modules
    }

    /// Forgets these milestones.
    pub(crate) fn wait_no_more(&mut self, which: impl Fn(Milestone) -> bool) {
        let is_one = |site: &&Arc<Site>| site.milestone.is_some_and(&which);
        let all: Vec<_> = self
            .sites
            .values()
            .filter(is_one)
            .map(|it| it.virt)
            .collect();
        for at in all {
            self.change(at, |site| site.milestone = None);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.sites.len()
    }

    pub(crate) fn site(&self, at: GuestVirtAddr) -> Option<&Arc<Site>> {
        self.sites.get(at)
    }

    /// What a hit at `at` looks at, if a plain site is there and an int3 there is ours.
    pub(crate) fn plain_site(&self, at: GuestVirtAddr) -> Option<&PlainSite> {
        // Where the guest holds a jump, no int3 is ours.
        self.sites.plain(at).filter(|_| self.held.is_empty())
    }

    /// Where hits look for plain sites.
    pub(crate) fn places(&self) -> Places {
        self.sites.places()
    }

    pub(crate) fn site_at_phys(&self, at: GuestPhysAddr) -> Option<&Arc<Site>> {
        self.sites.get(GuestVirtAddr(*self.by_phys.get(&at.0)?))
    }

    pub(crate) fn sites(&self) -> impl Iterator<Item = &Arc<Site>> + Clone {
        self.sites.values()
    }

    /// Puts a site in, or in the place of the one at its address.
    pub(crate) fn insert(&mut self, site: Site) {
        let mut site = site.armed_if_wanted(&self.switches);
        if let Verdict::Not(_) = site.verdict {
            site.verdict = Verdict::Waiting;
        }
        self.by_phys.insert(site.phys.0, site.virt.0);
        self.sites.insert(site);
    }

    /// Puts probes on an instruction.
    pub(crate) fn add(&mut self, site: Site, probes: Probes) {
        let mut site = match self.site(site.virt) {
            Some(known) => Site::clone(known),
            None => site,
        };
        site.probes.extend(probes);
        self.insert(site);
    }

    /// Sets whether a site is to be a jump.
    pub(crate) fn judge(&mut self, at: GuestVirtAddr, verdict: Verdict) {
        if let Some(site) = self.sites.get(at) {
            let site = Site::clone(site);
            self.sites.insert(Site { verdict, ..site });
        }
    }

    /// As [`Self::judge`], if the table still has this site unchanged. Returns true if it has.
    pub(crate) fn judge_same(&mut self, site: &Arc<Site>, verdict: Verdict) -> bool {
        let same = self
            .site(site.virt)
            .is_some_and(|now| Arc::ptr_eq(now, site));
        if same {
            self.judge(site.virt, verdict);
        }
        same
    }

    pub(crate) fn remove(&mut self, at: GuestVirtAddr) {
        if let Some(site) = self.sites.remove(at) {
            self.by_phys.remove(&site.phys.0);
        }
    }

    /// Changes the site at an address, and removes it if it has neither probes nor a milestone any more.
    pub(crate) fn change(&mut self, at: GuestVirtAddr, change: impl FnOnce(&mut Site)) {
        let Some(site) = self.sites.get(at) else {
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

    /// Arms and disarms the sites as the switches now say.
    pub(crate) fn rearm(&mut self) {
        let switches = &self.switches;
        self.sites.replace(|site| {
            let next = Site::clone(site).armed_if_wanted(switches);
            (!next.is_as(site)).then_some(next)
        });
    }

    /// Puts the original bytes into text that was read at `at`.
    pub(crate) fn unmask(&self, at: GuestVirtAddr, bytes: &mut [u8]) {
        // A jump that begins before it may reach into it.
        for before in 1..=(2 * MAX_INSTRUCTION_LEN as u64) {
            let start = at.0.wrapping_sub(before);
            if let Some(jump) = self.jump(GuestVirtAddr(start)) {
                jump.unmask_tail(before as usize, bytes);
            }
        }
        let mut offset = 0;
        while offset < bytes.len() {
            let here = at.wrapping_add(offset as u64);
            match bytes[offset] {
                // An int3 may be the guest's own, over a jump.
                INT3 | JMP_REL32 if let Some(jump) = self.jump(here) => {
                    jump.unmask_tail(0, &mut bytes[offset..]);
                }
                INT3 if let Some(site) = self.site(here).filter(|site| site.armed) => {
                    bytes[offset] = site.original;
                }
                _ => {}
            }
            offset += 1;
        }
    }

    /// Puts the original bytes into memory that was read at a physical address.
    pub(crate) fn unmask_physical(&self, at: GuestPhysAddr, bytes: &mut [u8]) {
        let end = at.0.saturating_add(bytes.len() as u64);
        for site in self.sites.values().chain(&self.held) {
            let (start, jump) = (site.phys.0, site.jump());
            let len = jump.map_or(1, |jump| jump.len()) as u64;
            if start >= end || start + len <= at.0 {
                continue;
            }
            let before = at.0.saturating_sub(start) as usize;
            let from = &mut bytes[start.saturating_sub(at.0) as usize..];
            match jump {
                Some(jump) => jump.unmask_tail(before, from),
                None if site.armed && from[0] == INT3 => from[0] = site.original,
                None => {}
            }
        }
    }

    /// The site of the jump that has an int3 of its displacement at `at`, and where the copy is of the instruction that
    /// began there.
    pub(crate) fn tripwire(&self, at: GuestVirtAddr) -> Option<(&Arc<Site>, GuestVirtAddr)> {
        let (site, offset) = self.tripwires.get(&at.0)?;
        let site = self
            .held(GuestVirtAddr(*site))
            .or_else(|| self.sites.get(GuestVirtAddr(*site)))?;
        Some((site, site.jump()?.copy(*offset)?))
    }

    /// The jump that is in the text at `at`, even if something of the guest's lies over it.
    fn jump(&self, at: GuestVirtAddr) -> Option<&Arc<Jump>> {
        let site = self.held(at).or_else(|| self.site(at));
        site.and_then(|site| site.jump())
    }

    /// Where a jump begins that overwrites `at` and begins before it, even if something of the guest's lies over it.
    pub(crate) fn jump_over(&self, at: GuestVirtAddr) -> Option<GuestVirtAddr> {
        let starts = (1..=2 * MAX_INSTRUCTION_LEN as u64)
            .map(|before| GuestVirtAddr(at.0.wrapping_sub(before)));
        let reaches = |start: &GuestVirtAddr| {
            let jump = self.jump(*start);
            jump.is_some_and(|jump| start.wrapping_add(jump.len() as u64) > at)
        };
        starts.into_iter().find(reaches)
    }

    /// The site at `at` whose jump the guest holds.
    pub(crate) fn held(&self, at: GuestVirtAddr) -> Option<&Arc<Site>> {
        self.held.iter().find(|site| site.virt == at)
    }

    /// All sites whose jumps the guest holds.
    pub(crate) fn all_held(&self) -> &[Arc<Site>] {
        &self.held
    }

    /// The same table with these jumps held.
    pub(crate) fn holding(&self, held: Vec<Arc<Site>>) -> Arc<Self> {
        let mut table = Self {
            held,
            ..self.clone()
        };
        table.find_jumps();
        Arc::new(table)
    }

    /// The table as traps are to look at it: without jumps that can't stay.
    pub(crate) fn settled(mut self) -> Arc<Self> {
        self.settle_jumps();
        Arc::new(self)
    }

    /// Takes those jumps away that can't stay, and finds the tripwires of what is left. Without active probes the
    /// engine doesn't have to wait for oopses.
    fn settle_jumps(&mut self) {
        if self.sites.values().all(|site| site.active.is_empty()) {
            self.wait_no_more(Milestone::is_of_oops);
        }
        let unfit: Vec<_> = self
            .sites
            .values()
            .filter(|site| matches!(site.verdict, Verdict::Jump(_)))
            .filter(|site| !self.may_jump(site))
            .map(|site| site.virt.0)
            .collect();
        for at in unfit {
            self.judge(GuestVirtAddr(at), Verdict::Waiting);
        }
        self.find_jumps();
    }

    /// Finds out which jumps and int3s there are, and the tripwires.
    fn find_jumps(&mut self) {
        self.tripwires.clear();
        for site in self.sites.values().chain(&self.held) {
            for offset in site.jump().into_iter().flat_map(|jump| jump.tripwires()) {
                let at = site.virt.wrapping_add(offset.into());
                self.tripwires.insert(at.0, (site.virt.0, offset));
            }
        }
        let is_of_module = |site: &Arc<Site>| site.milestone.is_some_and(Milestone::is_of_module);
        self.waits_for_modules = self.sites.values().any(is_of_module);
        let mut sites = self.sites.values();
        self.has_jumps = !self.held.is_empty() || sites.any(|site| site.jump().is_some());
        let traps = |site: &Arc<Site>| match site.jump() {
            Some(jump) => jump.traps(),
            None => site.armed,
        };
        self.has_int3 = !self.tripwires.is_empty() || self.sites.values().any(traps);
    }

    /// Returns true if the site's jump is still the right one.
    fn may_jump(&self, site: &Site) -> bool {
        let Some(jump) = site.jump() else {
            return false;
        };
        !self.switches.jumpless
            && site.wants_jump(&self.switches).as_ref() == Ok(&*jump.purpose)
            && self.inside(site.virt, jump.len()).is_none()
    }

    /// Another breakpoint of ours in the `len` bytes from `at`.
    pub(crate) fn inside(&self, at: GuestVirtAddr, len: usize) -> Option<&Arc<Site>> {
        (1..len as u64)
            .filter_map(|offset| self.site(at.wrapping_add(offset)))
            .find(|site| site.armed)
    }

    /// Has sites wait again that are no jumps for a reason that may have gone, as other probes have come or gone.
    pub(crate) fn reconsider(&mut self) {
        self.sites.replace(|site| {
            let waits = matches!(&site.verdict, Verdict::Not(why) if why.for_now());
            waits.then(|| Site {
                verdict: Verdict::Waiting,
                ..Site::clone(site)
            })
        });
    }

    /// Returns true if a site can't be a jump before the guest has taken something of its own away.
    pub(crate) fn waits_for_guest(&self) -> bool {
        let waits = |site: &Arc<Site>| matches!(&site.verdict, Verdict::Not(why) if why.guest_in().is_some());
        self.sites.values().any(waits)
    }

    /// Armed sites of which it isn't known yet whether they can be jumps.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Arc<Site>> {
        let waits = |site: &&Arc<Site>| site.armed && matches!(site.verdict, Verdict::Waiting);
        self.sites.values().filter(waits)
    }

    /// The kernel's text at `at` as it is without our breakpoints; fewer than
    /// `len` bytes where the image ends before. `None` outside the image.
    pub(crate) fn text(
        &self,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
        len: usize,
    ) -> Option<Result<Vec<u8>, MemoryError>> {
        self.text_below(memory, &GuestKprobes::default(), at, len)
    }

    /// As [`Self::text`], without the guest's kprobes either. Where both are, the kprobes lie over our jumps.
    pub(crate) fn text_below(
        &self,
        memory: &dyn GuestMemory,
        kprobes: &GuestKprobes,
        at: GuestVirtAddr,
        len: usize,
    ) -> Option<Result<Vec<u8>, MemoryError>> {
        let (phys, left) = self.image.to_phys(at)?;
        let mut bytes = vec![0; len.min(usize::try_from(left).unwrap_or(usize::MAX))];
        if let Err(error) = memory.read(phys, &mut bytes) {
            return Some(Err(error));
        }
        kprobes.unmask(at, &mut bytes);
        self.unmask(at, &mut bytes);
        Some(Ok(bytes))
    }
}
