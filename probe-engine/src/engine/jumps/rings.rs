//! Reading what detours leave behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use guest_state::{Action, GuestMemory, GuestVirtAddr, MemoryError, StoppedGuest, Vcpu};

use crate::arena::{Arena, Code, RINGS, TRAMPOLINE};
use crate::calls::{Call, Calls};
use crate::detour::Environment;
use crate::engine::Engine;
use crate::engine::code::room::rips;
use crate::engine::jumps::credit::{Credit, Known, ranges};
use crate::engine::jumps::reader::Reader;
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::Site;
use crate::percpu::PerCpu;
use crate::probe::{NoJump, ProbeId, ProbeKind};
use crate::ring::{self, layout};

/// After so many drains in a row that find nothing, with no jump left, breakpoints' events need not wait
/// for records any more.
const QUIET: u32 = 16;

/// What was read from the rings.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Records.
    pub records: u64,
    /// How often something unreadable was skipped: the guest has damaged its rings.
    pub damaged: u64,
    /// Events that are held back until it is known that no earlier one is to come.
    pub held: usize,
}

impl Engine {
    /// What detours have to know of the guest. The first call lays the rings out.
    pub(crate) fn environment(&self, memory: &dyn GuestMemory) -> Result<Environment, NoJump> {
        let mut reader = self.reader.lock();
        if let Some(reader) = &*reader {
            return Ok(reader.environment);
        }
        let not = |reason: String| NoJump::NoRings { reason };
        let table = self.table();
        let image = table.image.as_ref();
        let image = image.ok_or_else(|| not("it isn't known where the kernel is".to_owned()))?;
        let kernel = &self.kernel;
        let (symbols, variables) = (&kernel.symbols, &kernel.variables);
        let percpu = PerCpu::find(memory, image, symbols, variables, self.vcpus);
        let percpu = percpu.map_err(|error| not(error.to_string()))?;
        let to_phys = |at| self.arena.phys(at).ok_or_else(|| not(self.arena.note()));
        let mut places = Vec::new();
        for (number, block) in (0..).zip(percpu.blocks()) {
            let ring = RINGS.wrapping_add(number * 2 * layout::RING_LEN);
            places.push(ring::VcpuMemory {
                block: to_phys(*block)?,
                ring: to_phys(ring)?,
            });
        }
        let cells = percpu.cells();
        let mut rings = ring::Rings::new(places, cells);
        rings.init(memory).map_err(|error| not(error.to_string()))?;
        let environment = percpu.environment();
        let follower = self.make_follower(memory, &environment);
        *reader = Some(Reader {
            rings,
            environment,
            cells,
            credit: Credit::default(),
            follower,
            damaged: 0,
            quiet: 0,
        });
        Ok(environment)
    }

    /// How many detours can have a counter.
    pub(crate) fn cells(&self) -> u32 {
        self.reader.lock().as_ref().map_or(0, |reader| reader.cells)
    }

    /// Learns the numbers of these sites' detours and whose they are now, before the guest can come to
    /// them. What is in the rings already stays whose it was.
    pub(crate) fn number_detours<'s>(
        &self,
        memory: &dyn GuestMemory,
        sites: impl Iterator<Item = &'s Arc<Site>> + Clone,
    ) {
        let mut reader = self.reader.lock();
        let Some(reader) = &mut *reader else {
            return;
        };
        // Who was late in a detour of a removed probe, and the guest itself, may have written to counters
        // that nobody has read. Where they can't be, they count nothing.
        let jumps = sites.filter_map(|site| Some((site, site.jump()?)));
        let numbers = jumps.clone().map(|(_, jump)| jump.number);
        let numbers: BTreeSet<u32> = numbers
            .filter(|number| !reader.credit.is_counted(*number))
            .collect();
        for unread in ranges(numbers.into_iter()) {
            let _result = reader.rings.count(memory, unread);
        }
        let mut waits = false;
        for (site, jump) in jumps {
            waits |= jump.waits_at_return();
            reader.credit.number(site, jump, &reader.rings);
        }
        reader.credit.close_era(memory, &reader.rings);
        if waits {
            self.returns.lock().traps = true;
        }
    }

    /// Reads all that the guest has put into its rings, so that it is told of those probes whose it is
    /// before they change: to be called at a stop, before the next table is published.
    pub(crate) fn settle(&self, memory: &dyn GuestMemory) {
        if let Some(reader) = &mut *self.reader.lock() {
            self.drain_locked(reader, memory, true);
        }
    }

    /// A task that was preempted in a lossless detour comes to its int3 when the jump has long gone.
    pub(crate) fn may_wait_in_detour(&self) -> bool {
        let reader = self.reader.lock();
        reader.as_ref().is_some_and(|it| it.credit.may_wait())
    }

    /// Reads what the guest has put into its rings and reports it. To be called often while there are
    /// jumps. What is youngest is held back until the next call, as something earlier may be to come
    /// from another vCPU.
    pub fn drain(&self, memory: &dyn GuestMemory) -> Drained {
        let mut reader = self.reader.lock();
        match &mut *reader {
            Some(reader) => self.drain_locked(reader, memory, false).0,
            None => Drained::default(),
        }
    }

    /// As [`Self::drain`], and holds nothing back: what comes later is reported later. For when the
    /// guest stands still: whole records behind unfinished ones are read too.
    pub fn drain_all(&self, memory: &dyn GuestMemory) -> Drained {
        let drained = match &mut *self.reader.lock() {
            Some(reader) => self.drain_locked(reader, memory, true).0,
            None => Drained::default(),
        };
        self.merger.flush();
        Drained { held: 0, ..drained }
    }

    /// How often something unreadable was skipped in the rings so far: the guest has damaged them.
    pub fn ring_damage(&self) -> u64 {
        self.reader
            .lock()
            .as_ref()
            .map_or(0, |reader| reader.damaged)
    }

    /// As [`Self::drain_all`] for a guest that has ended: nobody finishes what isn't whole, so it counts as
    /// missed, and no call under way returns any more.
    pub fn drain_ended(&self, memory: &dyn GuestMemory) -> Drained {
        self.end_all_calls(memory);
        let drained = self.drain_all(memory);
        if let Some(reader) = &mut *self.reader.lock() {
            let lost = reader.rings.give_up(memory, |_| true);
            reader.credit.lose(&lost);
        }
        drained
    }

    /// How many hits of each of these probes have been noticed by detours and will be told of later: their
    /// records are being written, or their calls have not returned.
    pub(crate) fn unfinished(&self, guest: &dyn StoppedGuest, probes: &[Arc<Probe>]) -> Vec<u64> {
        let tables = self.kernel_tables(guest);
        let reader = self.reader.lock();
        let Some(reader) = &*reader else {
            return vec![0; probes.len()];
        };
        let records = reader.rings.unfinished(guest.memory());
        let calls = match &reader.follower {
            Ok(follower) if reader.credit.follows() => follower.untold(guest, &tables),
            _ => Vec::new(),
        };
        let credit = &reader.credit;
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
        probes.iter().map(of).collect()
    }

    /// Whether a ring has been held up for so long by a record that nobody finishes that somebody should
    /// stop the guest and [`Self::recover_rings`].
    pub fn is_held_up(&self) -> bool {
        let reader = self.reader.lock();
        reader.as_ref().is_some_and(|it| it.rings.may_have_dead())
    }

    /// Gives up those unfinished records whose writers don't exist any more: a task that died in the
    /// middle. They count as missed. Reads all of the guest's memory to be sure. How many there were.
    ///
    /// # Errors
    /// Part of the memory can't be read. Nothing is given up then.
    pub fn recover_rings(&self, guest: &dyn StoppedGuest) -> Result<usize, MemoryError> {
        let memory = guest.memory();
        self.settle(memory);
        let Some(rips) = rips(guest) else {
            return Ok(0);
        };
        let mut reader = self.reader.lock();
        let Some(reader) = &mut *reader else {
            return Ok(0);
        };
        let looked = |arena: &mut Arena| arena.inside(memory, &guest.ram(), &rips);
        let Some(inside) = self.arena.with(looked) else {
            return Ok(0);
        };
        let inside = inside?;
        let lost = reader.rings.give_up(memory, |header| match header {
            None => inside.is_empty(),
            Some(header) if header.returns => !inside.contains(&Code::Trampoline),
            Some(header) => !inside.contains(&Code::Detour(header.detour)),
        });
        reader.credit.lose(&lost);
        self.drain_locked(reader, memory, true);
        Ok(lost.iter().filter(|it| it.header.is_some()).count())
    }

    /// The numbers of this instruction's detours in which there are still calls of other return probes than
    /// these.
    pub(crate) fn busy_detours(
        &self,
        memory: &dyn GuestMemory,
        at: GuestVirtAddr,
        followers: &[ProbeId],
    ) -> BTreeSet<u32> {
        let reader = self.reader.lock();
        let Some(reader) = &*reader else {
            return BTreeSet::new();
        };
        let mut others = reader.credit.following(&BTreeSet::from([at]));
        others.retain(|number| !reader.credit.is_followed_for(*number, followers));
        if let Ok(follower) = &reader.follower
            && !others.is_empty()
            && let Ok(calls) = follower.calls.under_way(memory)
        {
            others.retain(|number| calls.iter().any(|call| call.number == *number));
        }
        others
    }

    /// `ahead`: no vCPU runs. Also says which rings are blocked.
    fn drain_locked(
        &self,
        reader: &mut Reader,
        memory: &dyn GuestMemory,
        ahead: bool,
    ) -> (Drained, ring::Drained) {
        let table = self.table();
        let Reader {
            rings,
            credit,
            follower,
            damaged,
            quiet,
            ..
        } = reader;
        let mut records = Vec::new();
        let shape = |header| credit.shape(header);
        let found = rings.read(memory, ahead, shape, |at, record| {
            records.push((at, record));
        });
        for (at, record) in records {
            credit.record(at, &record, &table, &self.merger);
        }
        credit.forget_eras(rings);
        *damaged = damaged.saturating_add(found.damaged);
        let held = self.merger.drained(found.is_blocked());
        let mut counters = credit.counters().iter().cloned();
        if counters.all(|numbers| rings.count(memory, numbers).is_ok()) {
            credit.count(rings);
        }
        if let Ok(follower) = follower
            && credit.follows()
            && let Ok(now) = follower.calls.tallies(memory, credit.numbers() as usize)
        {
            if credit.is_crowded(&now) {
                // Tasks may have ended inside, which takes a look.
                self.calls_crowded.store(true, Ordering::Relaxed);
                self.unsettled.store(true, Ordering::Relaxed);
            }
            credit.count_calls(&table, now);
        }
        let is_quiet = found.records == 0 && !found.is_blocked() && !table.has_jumps();
        *quiet = if is_quiet { *quiet + 1 } else { 0 };
        if *quiet == QUIET {
            self.merger.set_active(false);
        }
        let drained = Drained {
            records: found.records,
            damaged: found.damaged,
            held,
        };
        (drained, found)
    }

    /// A vCPU has come to the int3 of a lossless detour: its ring is full. Makes room, or, where
    /// somebody who was interrupted by this one has not finished his record, loses this one.
    pub(crate) fn ring_is_full(
        &self,
        rip: GuestVirtAddr,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Option<Action> {
        let in_detour = self.arena.detour_at(rip);
        let mut reader = self.reader.lock();
        let reader = reader.as_mut()?;
        let number = in_detour.unwrap_or(vcpu.registers().rax as u32);
        let known = reader.credit.known(number);
        let (code, full) = match (in_detour, &reader.follower) {
            (Some(_), _) => known?.waits_at()?,
            (None, Ok(follower)) => (TRAMPOLINE, follower.full),
            (None, Err(_)) => return None,
        };
        if code.wrapping_add(full.trap.into()) != rip {
            return None;
        }
        let probes: Vec<_> = known.into_iter().flat_map(Known::probes).cloned().collect();
        let ring = vcpu.id().0 as usize;
        let before = reader.rings.tails().nth(ring);
        let (_, found) = self.drain_locked(reader, memory, false);
        // What others have got room for is of no use to this one.
        let is_stuck = before == reader.rings.tails().nth(ring);
        let blocked = found.blocked.get(ring).copied().unwrap_or(true) && is_stuck;
        vcpu.registers_mut().rip = if blocked {
            code.wrapping_add(full.gives_up.into()).0
        } else {
            rip.0 + 1
        };
        probes.iter().for_each(|probe| probe.exit());
        Some(Action::Resume)
    }

    /// Whether return probes can be jumps.
    pub(crate) fn can_follow(&self) -> Result<(), NoJump> {
        match &*self.reader.lock() {
            Some(reader) => reader.follower.clone().map(drop),
            None => Ok(()),
        }
    }

    /// The table of calls, and the numbers of the detours that follow the calls of the functions probed at
    /// these addresses, if there are any.
    pub(crate) fn followed_at(
        &self,
        gone: &BTreeSet<GuestVirtAddr>,
    ) -> Option<(Calls, BTreeSet<u32>)> {
        let reader = self.reader.lock();
        let reader = reader.as_ref()?;
        let numbers = reader.credit.following(gone);
        let calls = reader.follower.as_ref().ok()?.calls;
        (!numbers.is_empty()).then_some((calls, numbers))
    }

    /// The instruction that a detour is for.
    pub(crate) fn detour_of(&self, number: u32) -> Option<GuestVirtAddr> {
        let reader = self.reader.lock();
        reader.as_ref()?.credit.known(number).map(Known::at)
    }

    /// The table of calls, if one has ever been followed.
    pub(crate) fn table_of_calls(&self) -> Option<Calls> {
        let reader = self.reader.lock();
        let reader = reader.as_ref().filter(|it| it.credit.follows())?;
        Some(reader.follower.as_ref().ok()?.calls)
    }

    /// The calls that detours follow: of what the guest has written over the table, only what has the number
    /// of a detour.
    pub(crate) fn followed(&self, memory: &dyn GuestMemory) -> Vec<Call> {
        // Locked once: the guest may have made a call of each place in the table.
        let reader = self.reader.lock();
        let Some(Reader {
            credit,
            follower: Ok(follower),
            ..
        }) = reader.as_ref().filter(|it| it.credit.follows())
        else {
            return Vec::new();
        };
        let is_known = |number| credit.known(number).is_some();
        let found = follower.calls.under_way_of(memory, is_known);
        found.unwrap_or_default()
    }

    /// The numbers of the detours whose calls are under way, and of those with unfinished records.
    pub(crate) fn recording(&self, memory: &dyn GuestMemory) -> Result<Vec<u32>, MemoryError> {
        let reader = self.reader.lock();
        let Some(reader) = &*reader else {
            return Ok(Vec::new());
        };
        let calls = match &reader.follower {
            Ok(follower) => follower.calls.under_way(memory)?,
            Err(_) => Vec::new(),
        };
        let unfinished = reader.rings.unfinished(memory).into_iter();
        let unfinished = unfinished.filter_map(|it| Some(it.header?.detour));
        Ok(calls
            .iter()
            .map(|call| call.number)
            .chain(unfinished)
            .collect())
    }
}
