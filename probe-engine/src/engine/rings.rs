//! What detours leave behind, and how it becomes events.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::follow::Follower;
use super::jump::WhyNot;
use super::table::Table;
use super::{Action, Engine};
use crate::addr::{GuestVirtAddr, ProbeId};
use crate::arena::{RINGS, TRAMPOLINE};
use crate::calls::{Calls, Tally};
use crate::detour::{Environment, Follow, Full};
use crate::event::{Detail, Event, EventSink};
use crate::guest::{GuestMemory, MemoryError};
use crate::percpu::PerCpu;
use crate::probe::{Capture, ProbeKind, RegisterSet};
use crate::ring::{self, layout};
use crate::vcpu::{Registers, Vcpu};

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

/// The rings, once the guest has started and jumps are wanted.
#[derive(Debug)]
pub(super) struct Reader {
    rings: ring::Rings,
    environment: Environment,
    cells: u32,
    /// By the number of a detour.
    detours: Vec<Option<Known>>,
    /// What return probes have, or why they can't be jumps.
    follower: Result<Follower, WhyNot>,
    /// What the table of calls had counted when it was last looked at, by the number of a detour.
    tallies: Vec<Tally>,
    /// All that was found so far; see [`Drained::damaged`].
    damaged: u64,
}

/// A detour.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The probed instruction.
    at: GuestVirtAddr,
    /// What a hit leaves behind.
    capture: Option<Capture>,
    /// How its function's calls are followed.
    follow: Option<Follow>,
    code: GuestVirtAddr,
    full: Option<Full>,
    /// What its counter had come to when it was last looked at.
    counted: u64,
}

impl Engine {
    /// What detours have to know of the guest. The first call lays the rings out.
    pub(super) fn environment(&self, memory: &dyn GuestMemory) -> Result<Environment, WhyNot> {
        let mut reader = self.reader();
        if let Some(reader) = &*reader {
            return Ok(reader.environment);
        }
        let not = |why: String| WhyNot::new("no rings", why);
        let table = self.table();
        let image = table.image.as_ref();
        let image = image.ok_or_else(|| not("it isn't known where the kernel is".to_owned()))?;
        let kernel = &self.kernel;
        let (symbols, variables) = (&kernel.symbols, &kernel.variables);
        let percpu = PerCpu::find(memory, image, symbols, variables, self.vcpus);
        let percpu = percpu.map_err(|error| not(error.to_string()))?;
        let to_phys = |at| self.arena_phys(at).ok_or_else(|| not(self.arena_note()));
        let mut places = Vec::new();
        for (number, block) in (0..).zip(percpu.blocks()) {
            let ring = RINGS.wrapping_add(number * 2 * layout::RING_LEN);
            places.push(ring::Place {
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
            detours: Vec::new(),
            follower,
            tallies: Vec::new(),
            damaged: 0,
        });
        Ok(environment)
    }

    /// How many detours can have a counter.
    pub(super) fn cells(&self) -> u32 {
        self.reader().as_ref().map_or(0, |reader| reader.cells)
    }

    /// Learns the numbers of the table's detours, before the guest can come to them.
    pub(super) fn number_detours(&self, table: &Table) {
        let mut reader = self.reader();
        let Some(reader) = &mut *reader else {
            return;
        };
        for jump in table.sites().filter_map(|site| site.jump()) {
            if jump.waits_at_return() {
                self.returns().traps = true;
            }
            let index = jump.number as usize;
            if reader.detours.len() <= index {
                reader.detours.resize(index + 1, None);
            }
            let known = &mut reader.detours[index];
            let counted = match known {
                Some(known) if known.at == jump.region.start => known.counted,
                _ => reader.rings.total(jump.number),
            };
            *known = Some(Known {
                at: jump.region.start,
                capture: jump.wanted.capture,
                follow: jump.wanted.follow,
                code: jump.detour.at,
                full: jump.detour.full,
                counted,
            });
        }
    }

    /// Reads what the guest has put into its rings and reports it. To be called often while there are
    /// jumps. What is youngest is held back until the next call, as something earlier may be to come
    /// from another vCPU.
    pub fn drain(&self, memory: &dyn GuestMemory) -> Drained {
        let mut reader = self.reader();
        match &mut *reader {
            Some(reader) => self.drain_locked(reader, memory).0,
            None => Drained::default(),
        }
    }

    /// As [`Self::drain`], and holds nothing back: what comes later is reported later. For when the
    /// guest stands still, or has ended.
    pub fn drain_all(&self, memory: &dyn GuestMemory) -> Drained {
        let drained = self.drain(memory);
        self.merger.flush();
        Drained { held: 0, ..drained }
    }

    /// How often something unreadable was skipped in the rings so far: the guest has damaged them.
    pub fn ring_damage(&self) -> u64 {
        self.reader().as_ref().map_or(0, |reader| reader.damaged)
    }

    /// Also says which rings are blocked.
    fn drain_locked(
        &self,
        reader: &mut Reader,
        memory: &dyn GuestMemory,
    ) -> (Drained, ring::Drained) {
        let table = self.table();
        let Reader {
            rings,
            detours,
            follower,
            tallies,
            damaged,
            ..
        } = reader;
        let shape =
            |header: ring::Header| (*detours.get(header.detour as usize)?)?.shape(header.returns);
        let mut records = Vec::new();
        let found = rings.drain(memory, shape, |record| records.push(record));
        for record in records {
            let Some(Some(known)) = detours.get(record.detour as usize) else {
                continue;
            };
            // Gone meanwhile: nobody is interested.
            let Some(site) = table.site(known.at) else {
                continue;
            };
            for probe in site.enabled() {
                let returns = matches!(probe.kind, ProbeKind::Return { .. });
                if returns != record.call.is_some() {
                    continue;
                }
                probe.hit();
                if let Some(wanted) = probe.options.capture.registers() {
                    self.merger
                        .event(&event(probe.id, known.at, &record, wanted));
                }
            }
        }
        *damaged = damaged.saturating_add(found.damaged);
        let held = self.merger.drained(found.is_blocked());
        if rings.count(memory, 0..detours.len() as u32).is_ok() {
            count(&table, rings, detours);
        }
        if let Ok(follower) = follower
            && detours.iter().flatten().any(|known| known.follow.is_some())
            && let Ok(now) = follower.calls.tallies(memory, detours.len())
        {
            if is_crowded(detours, tallies, &now) {
                // Tasks may have ended inside, which takes a look.
                self.crowded.store(true, Ordering::Relaxed);
                self.unsettled.store(true, Ordering::Relaxed);
            }
            count_calls(&table, detours, tallies, now);
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
    pub(super) fn ring_is_full(
        &self,
        rip: GuestVirtAddr,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Option<Action> {
        let in_detour = self.detour_at(rip);
        let mut reader = self.reader();
        let reader = reader.as_mut()?;
        let number = in_detour.unwrap_or(vcpu.registers().rax as u32);
        let known = reader.detours.get(number as usize).copied().flatten();
        let (code, full) = match (in_detour, &reader.follower) {
            (Some(_), _) => (known?.code, known?.full?),
            (None, Ok(follower)) => (TRAMPOLINE, follower.full),
            (None, Err(_)) => return None,
        };
        if code.wrapping_add(full.trap.into()) != rip {
            return None;
        }
        let (_, found) = self.drain_locked(reader, memory);
        let ring = vcpu.id().0 as usize;
        let blocked = found.blocked.get(ring).copied().unwrap_or(true) && found.records == 0;
        vcpu.registers_mut().rip = if blocked {
            code.wrapping_add(full.gives_up.into()).0
        } else {
            rip.0 + 1
        };
        if let Some(site) = known.and_then(|known| self.table().site(known.at).cloned()) {
            site.enabled().for_each(|probe| probe.exit());
        }
        Some(Action::Resume)
    }

    /// Whether return probes can be jumps.
    pub(super) fn can_follow(&self) -> Result<(), WhyNot> {
        match &*self.reader() {
            Some(reader) => reader.follower.clone().map(drop),
            None => Ok(()),
        }
    }

    /// The table of calls, and the numbers of the detours that follow the calls of the functions probed at
    /// these addresses, if there are any.
    pub(super) fn followed_at(
        &self,
        gone: &BTreeSet<GuestVirtAddr>,
    ) -> Option<(Calls, BTreeSet<u32>)> {
        let reader = self.reader();
        let reader = reader.as_ref()?;
        let known = reader.detours.iter().zip(0..);
        let numbers: BTreeSet<_> = known
            .filter_map(|(known, number)| Some((known.as_ref()?, number)))
            .filter(|(known, _)| known.follow.is_some() && gone.contains(&known.at))
            .map(|(_, number)| number)
            .collect();
        let calls = reader.follower.as_ref().ok()?.calls;
        (!numbers.is_empty()).then_some((calls, numbers))
    }

    /// The instruction that a detour is for.
    pub(super) fn detour_of(&self, number: u32) -> Option<GuestVirtAddr> {
        let reader = self.reader();
        let known = reader.as_ref()?.detours.get(number as usize)?.as_ref();
        known.map(|known| known.at)
    }

    /// The table of calls, if there is one.
    pub(super) fn table_of_calls(&self) -> Option<Calls> {
        let reader = self.reader();
        Some(reader.as_ref()?.follower.as_ref().ok()?.calls)
    }

    /// The numbers of the detours whose calls are under way.
    pub(super) fn followed(&self, memory: &dyn GuestMemory) -> Result<Vec<u32>, MemoryError> {
        let follower = match &*self.reader() {
            Some(reader) => reader.follower.as_ref().ok().copied(),
            None => None,
        };
        let calls = match follower {
            Some(follower) => follower.calls.under_way(memory)?,
            None => Vec::new(),
        };
        Ok(calls.iter().map(|call| call.number).collect())
    }

    fn reader(&self) -> MutexGuard<'_, Option<Reader>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The registers in its records of hits, or of returns, if it leaves such.
    fn shape(&self, returns: bool) -> Option<RegisterSet> {
        if returns {
            return self
                .follow
                .filter(|it| it.records)
                .map(|_| RegisterSet::ALL);
        }
        self.capture?.registers()
    }
}

/// What a record tells of a probe.
fn event(probe: ProbeId, at: GuestVirtAddr, record: &ring::Record, wanted: RegisterSet) -> Event {
    let with_rip = |registers: &Registers, rip| Registers { rip, ..*registers }.only(wanted);
    let (rip, detail) = match &record.call {
        None => (at.0, Detail::Pre),
        Some(call) => {
            let detail = Detail::Return {
                caller: GuestVirtAddr(call.caller),
                entry_tsc: call.entry_tsc,
                entry: with_rip(&call.entry, at.0),
            };
            (call.caller, detail)
        }
    };
    Event {
        probe,
        vcpu: record.vcpu,
        tsc: record.tsc,
        registers: with_rip(&record.registers, rip),
        task: record.task,
        detail,
    }
}

/// Whether there may be no room for a call that is to come, or there was none for one.
fn is_crowded(detours: &[Option<Known>], before: &[Tally], now: &[Tally]) -> bool {
    let missed = |index: usize| before.get(index).map_or(0, |tally| tally.missed);
    detours.iter().zip(now).enumerate().any(|(index, pair)| {
        let (
            Some(Known {
                follow: Some(follow),
                ..
            }),
            now,
        ) = pair
        else {
            return false;
        };
        now.active >= follow.limit || now.missed != missed(index)
    })
}

/// Takes over what the table of calls has counted.
fn count_calls(table: &Table, detours: &[Option<Known>], before: &mut Vec<Tally>, now: Vec<Tally>) {
    before.resize(now.len(), Tally::default());
    for ((known, before), now) in detours.iter().zip(&*before).zip(&now) {
        let missed = now.missed.wrapping_sub(before.missed);
        let counted = now.counted.wrapping_sub(before.counted);
        let Some(known) = known.filter(|_| missed != 0 || counted != 0) else {
            continue;
        };
        let probes = table
            .site(known.at)
            .into_iter()
            .flat_map(|site| site.enabled());
        for probe in probes.filter(|probe| matches!(probe.kind, ProbeKind::Return { .. })) {
            probe.miss_often(missed.into());
            if known.shape(true).is_none() {
                probe.hit_often(counted.into());
            }
        }
    }
    *before = now;
}

/// Takes over what the detours' counters have come to.
fn count(table: &Table, rings: &ring::Rings, detours: &mut [Option<Known>]) {
    for (number, known) in (0..).zip(detours) {
        let Some(known) = known else {
            continue;
        };
        let total = rings.total(number);
        let grown = total.wrapping_sub(known.counted);
        known.counted = total;
        if grown == 0 {
            continue;
        }
        let probes = table
            .site(known.at)
            .into_iter()
            .flat_map(|site| site.enabled());
        for probe in probes.filter(|probe| matches!(probe.kind, ProbeKind::Instruction { .. })) {
            match known.capture {
                Some(Capture::Count) => probe.hit_often(grown),
                _ => probe.miss_often(grown),
            }
        }
    }
}
