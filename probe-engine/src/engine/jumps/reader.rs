//! The reader of the rings: it has the probes that records and counts belong to, and what is known of calls that
//! detours follow.

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
    /// The probes that the records and counts belong to.
    pub(crate) credit: Credit,
    /// The parts that return probes need to be jumps, or why they can't be.
    pub(crate) follower: Result<Follower, NoJump>,
    /// The damage that was found so far; see [`crate::engine::Drained::damaged`].
    pub(crate) damaged: u64,
    /// Drains in a row that have found nothing, with no jump in the text.
    pub(crate) quiet: u32,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Rank::Reader, None))
    }

    /// Returns what detours have to know of the guest. Without rings, `make` lays them out.
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

    /// Calls `look` with the rings; `None` if there are none.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut ReaderState) -> T) -> Option<T> {
        self.hold(|state| state.map(look))
    }

    /// Calls `look` with the lock held, whether there are rings or not.
    pub(crate) fn hold<T>(&self, look: impl FnOnce(Option<&mut ReaderState>) -> T) -> T {
        look(self.0.lock().as_mut())
    }

    /// The number of detours that can have a counter.
    pub(crate) fn cells(&self) -> u32 {
        self.with(|it| it.cells).unwrap_or(0)
    }

    /// How often something unreadable was skipped so far.
    pub(crate) fn damage(&self) -> u64 {
        self.with(|it| it.damaged).unwrap_or(0)
    }

    /// Returns true if an unfinished record may hold a ring up for ever.
    pub(crate) fn may_have_dead(&self) -> bool {
        self.with(|it| it.rings.may_have_dead()).unwrap_or(false)
    }

    /// Returns true if a task may wait in a lossless detour: one that was preempted there comes to its int3 when the
    /// jump has long gone.
    pub(crate) fn may_wait_in_detour(&self) -> bool {
        self.with(|it| it.credit.may_wait()).unwrap_or(false)
    }

    /// Checks that return probes can be jumps.
    pub(crate) fn can_follow(&self) -> Result<(), NoJump> {
        self.with(|it| it.follower.clone().map(drop))
            .unwrap_or(Ok(()))
    }

    /// Takes in the numbers of these sites' detours and the probes that they belong to now, before the guest can come
    /// to them. What is in the rings already stays with the probes that it belonged to. Returns true if a detour may
    /// come to an int3 when its call returns.
    pub(crate) fn number_detours<'s>(
        &self,
        memory: &dyn GuestMemory,
        sites: impl Iterator<Item = &'s Arc<Site>> + Clone,
    ) -> bool {
        let number = |it: &mut ReaderState| it.number_detours(memory, sites);
        self.with(number).unwrap_or(false)
    }

    /// Returns those of these probes of which detours have noticed hits that would be reported later, and how many:
    /// their records are being written, or their calls have not returned.
    pub(crate) fn unfinished(
        &self,
        guest: &dyn StoppedGuest,
        tables: &[PageTables],
        probes: &[Arc<Probe>],
    ) -> Vec<(Arc<Probe>, u64)> {
        self.with(|it| it.unfinished(guest, tables, probes))
            .unwrap_or_default()
    }

    /// Returns the instruction that a detour is for.
    pub(crate) fn detour_of(&self, number: u32) -> Option<GuestVirtAddr> {
        self.with(|it| it.credit.known(number).map(KnownDetour::at))?
    }

    /// Returns the numbers of this instruction's detours in which there are still calls of other return probes than
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

    /// Returns the table of calls, and the numbers of the detours that follow the calls of the functions probed at
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

    /// The table of calls, if there is a detour that follows calls.
    pub(crate) fn calls(&self) -> Option<Calls> {
        self.with(|it| it.calls())?
    }

    /// Returns the calls that detours follow. Where the guest has written over the table, only entries with the number
    /// of a detour count.
    pub(crate) fn followed(&self, memory: &dyn GuestMemory) -> Vec<Call> {
        // The lock is taken once: the guest may have filled every place of the table with a call.
        let followed = self.with(|it| {
            let is_known = |number| it.credit.known(number).is_some();
            it.calls()?.under_way_of(memory, is_known).ok()
        });
        followed.flatten().unwrap_or_default()
    }

    /// Returns the numbers of the detours whose calls are under way, and of those with unfinished
    /// records.
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
        // A task that was late in a detour of a removed probe, or the guest itself, may have written to counters that
        // weren't read. Those that can't be read count nothing.
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
            // There may be thousands of probes: they needn't be looked at.
            return Vec::new();
        }
        let of = |probe: &Arc<Probe>| {
            let is_of = |it: &&ring::Unfinished| {
                let header = it.header;
                header.is_some_and(|header| {
                    // The call of a return's record is still in the table, and counts there.
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

    /// Forgets those detours that no longer exist. No call of theirs is under way.
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
