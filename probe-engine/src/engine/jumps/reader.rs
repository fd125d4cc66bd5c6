//! The reader of the rings: whose records and counts they have, and what is known of calls that detours follow.

use std::collections::BTreeSet;
use std::sync::Arc;

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr, MemoryError, StoppedGuest};

use crate::calls::{Call, Calls};
use crate::detour::Environment;
use crate::engine::jumps::credit::{Credit, ranges};
use crate::engine::jumps::known_detour::KnownDetour;
use crate::engine::lock::{Lock, Rank};
use crate::engine::returns::follower::Follower;
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::Site;
use crate::probe::{NoJump, ProbeId, ProbeKind};
use crate::ring::{self, Rings};

/// The rings, under their lock, once the guest has started and jumps are wanted.
#[derive(Debug)]
pub(crate) struct Reader(Lock<Option<ReaderState>>);

/// What the lock holds.
#[derive(Debug)]
pub(crate) struct ReaderState {
    pub(crate) rings: Rings,
    pub(crate) environment: Environment,
    pub(crate) cells: u32,
    /// Where the variables of the first CPU are.
    pub(crate) first_cpu: GuestVirtAddr,
    /// Whose the records and counts are.
    pub(crate) credit: Credit,
    /// What return probes have, or why they can't be jumps.
    pub(crate) follower: Result<Follower, NoJump>,
    /// All that was found so far; see [`crate::engine::Drained::damaged`].
    pub(crate) damaged: u64,
    /// Drains in a row that have found nothing, with no jump in the text.
    pub(crate) quiet: u32,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Rank::Reader, None))
    }

    /// What detours have to know of the guest. Without rings, `make` lays them out.
    pub(crate) fn environment(
        &self,
        make: impl FnOnce() -> Result<ReaderState, NoJump>,
    ) -> Result<Environment, NoJump> {
        let mut state = self.0.lock();
        if let Some(state) = &*state {
            return Ok(state.environment);
        }
        Ok(state.insert(make()?).environment)
    }

    /// Looks at the rings, or reads them; `None` if there are none.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut ReaderState) -> T) -> Option<T> {
        self.hold(|state| state.map(look))
    }

    /// Holds the lock, whether there are rings or not.
    pub(crate) fn hold<T>(&self, look: impl FnOnce(Option<&mut ReaderState>) -> T) -> T {
        look(self.0.lock().as_mut())
    }

    /// How many detours can have a counter.
    pub(crate) fn cells(&self) -> u32 {
        self.with(|it| it.cells).unwrap_or(0)
    }

    /// How often something unreadable was skipped so far.
    pub(crate) fn damage(&self) -> u64 {
        self.with(|it| it.damaged).unwrap_or(0)
    }

    /// Whether a record that nobody finishes may hold a ring up.
    pub(crate) fn may_have_dead(&self) -> bool {
        self.with(|it| it.rings.may_have_dead()).unwrap_or(false)
    }

    /// A task that was preempted in a lossless detour comes to its int3 when the jump has long gone.
    pub(crate) fn may_wait_in_detour(&self) -> bool {
        self.with(|it| it.credit.may_wait()).unwrap_or(false)
    }

    /// Whether return probes can be jumps.
    pub(crate) fn can_follow(&self) -> Result<(), NoJump> {
        self.with(|it| it.follower.clone().map(drop))
            .unwrap_or(Ok(()))
    }

    /// Learns the numbers of these sites' detours and whose they are now, before the guest can come to
    /// them. What is in the rings already stays whose it was. Returns whether a detour may come to an int3 when
    /// its call returns.
    pub(crate) fn number_detours<'s>(
        &self,
        memory: &dyn GuestMemory,
        sites: impl Iterator<Item = &'s Arc<Site>> + Clone,
    ) -> bool {
        let number = |it: &mut ReaderState| it.number_detours(memory, sites);
        self.with(number).unwrap_or(false)
    }

    /// Those of these probes of which detours have noticed hits that would be told of later, and how many: their
    /// records are being written, or their calls have not returned.
    pub(crate) fn unfinished(
        &self,
        guest: &dyn StoppedGuest,
        tables: &[PageTables],
        probes: &[Arc<Probe>],
    ) -> Vec<(Arc<Probe>, u64)> {
        self.with(|it| it.unfinished(guest, tables, probes))
            .unwrap_or_default()
    }

    /// The instruction that a detour is for.
    pub(crate) fn detour_of(&self, number: u32) -> Option<GuestVirtAddr> {
        self.with(|it| it.credit.known(number).map(KnownDetour::at))?
    }

    /// The numbers of this instruction's detours in which there are still calls of other return probes than
    /// these.
    pub(crate) fn busy_detours(
        &self,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
        followers: &[ProbeId],
    ) -> BTreeSet<u32> {
        self.with(|it| it.busy_detours(memory, at, followers))
            .unwrap_or_default()
    }

    /// The table of calls, and the numbers of the detours that follow the calls of the functions probed at
    /// these addresses, if there are any.
    pub(crate) fn followed_at(
        &self,
        gone: &BTreeSet<GuestVirtAddr>,
    ) -> Option<(Calls, BTreeSet<u32>)> {
        self.with(|it| {
            let numbers = it.credit.following(gone);
            let calls = it.follower.as_ref().ok()?.calls;
            (!numbers.is_empty()).then_some((calls, numbers))
        })?
    }

    /// The table of calls, if one has ever been followed.
    pub(crate) fn calls(&self) -> Option<Calls> {
        self.with(|it| it.calls())?
    }

    /// The calls that detours follow: of what the guest has written over the table, only what has the number
    /// of a detour.
    pub(crate) fn followed(&self, memory: &dyn GuestMemory) -> Vec<Call> {
        // Locked once: the guest may have made a call of each place in the table.
        let followed = self.with(|it| {
            let is_known = |number| it.credit.known(number).is_some();
            it.calls()?.under_way_of(memory, is_known).ok()
        });
        followed.flatten().unwrap_or_default()
    }

    /// The numbers of the detours whose calls are under way, and of those with unfinished records.
    pub(crate) fn recording(&self, memory: &dyn GuestMemory) -> Result<Vec<u32>, MemoryError> {
        self.with(|it| it.recording(memory))
            .unwrap_or_else(|| Ok(Vec::new()))
    }
}

impl ReaderState {
    fn calls(&self) -> Option<Calls> {
        let follower = self.follower.as_ref().ok()?;
        self.credit.follows().then_some(follower.calls)
    }

    fn number_detours<'s>(
        &mut self,
        memory: &dyn GuestMemory,
        sites: impl Iterator<Item = &'s Arc<Site>> + Clone,
    ) -> bool {
        // Who was late in a detour of a removed probe, and the guest itself, may have written to counters
        // that nobody has read. Where they can't be, they count nothing.
        let jumps = sites.filter_map(|site| Some((site, site.jump()?)));
        let numbers = jumps.clone().map(|(_, jump)| jump.number);
        let numbers: BTreeSet<u32> = numbers
            .filter(|number| !self.credit.is_counted(*number))
            .collect();
        for unread in ranges(numbers.into_iter()) {
            let _result = self.rings.count(memory, unread);
        }
        let mut waits = false;
        for (site, jump) in jumps {
            waits |= jump.waits_at_return();
            self.credit.number(site, jump, &self.rings);
        }
        self.credit.close_era(memory, &self.rings);
        waits
    }

    fn unfinished(
        &self,
        guest: &dyn StoppedGuest,
        tables: &[PageTables],
        probes: &[Arc<Probe>],
    ) -> Vec<(Arc<Probe>, u64)> {
        let records = self.rings.unfinished(guest.memory());
        let credit = &self.credit;
        let calls = match &self.follower {
            Ok(follower) if credit.follows() => follower.untold(guest, tables),
            _ => Vec::new(),
        };
        if records.is_empty() && calls.is_empty() {
            // Thousands of probes needn't be looked at.
            return Vec::new();
        }
        let of = |probe: &Arc<Probe>| {
            let is_of = |it: &&ring::Unfinished| {
                let header = it.header;
                header.is_some_and(|header| {
                    // Such a call is still in the table.
                    !header.returns && credit.is_of(probe, it.vcpu, it.at, header)
                })
            };
            let records = records.iter().filter(is_of).count();
            let follows = |call: &&Call| credit.follows_for(call.number, probe);
            let calls = match probe.kind {
                ProbeKind::Return { .. } => calls.iter().filter(follows).count(),
                _ => 0,
            };
            (records + calls) as u64
        };
        let all = probes.iter().map(|probe| (Arc::clone(probe), of(probe)));
        all.filter(|(_, times)| *times > 0).collect()
    }

    fn busy_detours(
        &self,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
        followers: &[ProbeId],
    ) -> BTreeSet<u32> {
        let mut others = self.credit.following(&BTreeSet::from([at]));
        others.retain(|number| !self.credit.is_followed_for(*number, followers));
        if let Ok(follower) = &self.follower
            && !others.is_empty()
            && let Ok(calls) = follower.calls.under_way(memory)
        {
            others.retain(|number| calls.iter().any(|call| call.number == *number));
        }
        others
    }

    fn recording(&self, memory: &dyn GuestMemory) -> Result<Vec<u32>, MemoryError> {
        let calls = match &self.follower {
            Ok(follower) => follower.calls.under_way(memory)?,
            Err(_) => Vec::new(),
        };
        let unfinished = self.rings.unfinished(memory).into_iter();
        let unfinished = unfinished.filter_map(|it| Some(it.header?.detour));
        Ok(calls
            .iter()
            .map(|call| call.number)
            .chain(unfinished)
            .collect())
    }

    /// Forgets those detours that are no more. No call of theirs is under way.
    pub(crate) fn forget_detours(
        &mut self,
        memory: &dyn GuestMemory,
        is_gone: impl Fn(u32) -> bool,
    ) {
        for number in (0..self.credit.numbers()).filter(|number| is_gone(*number)) {
            if self.credit.forget(number)
                && let Ok(follower) = &self.follower
            {
                // Where that can't be written, nothing is followed.
                let _result = follower.calls.none_active(memory, number);
            }
        }
    }
}
