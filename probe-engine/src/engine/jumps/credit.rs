//! Which probes a record or a count belongs to.
//!
//! It belongs to the probes that were enabled at the jump when it was written, however late it is read: a hit of a
//! probe that has been disabled since is one of its hits, and one from before it was enabled is none. So the rings are
//! read at each stop before the probes change. A record that is still being written can't be read then; it is told
//! from later ones by its position in the ring. What a task does elsewhere in a detour whose jump is taken away still
//! belongs to the probes that the jump had.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use guest_state::{GuestMemory, GuestVirtAddr, Registers, Tsc, VcpuId};

use crate::calls::Tally;
use crate::engine::hits::merge::Merger;
use crate::engine::jumps::known_detour::{KnownDetour, event, is_met, is_return};
use crate::engine::sites::jump::Jump;
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::{Probes, Site, are_same};
use crate::engine::sites::table::Table;
use crate::event::{Event, EventSink, Stack};
use crate::fetch::Fetches;
use crate::probe::{Capture, ProbeId};
use crate::ring::{Record, RecordHeader, Rings, Shape, Unfinished};
use crate::value::stack_piece;

/// Eras that are remembered at most. With more changes while one record stays unfinished, that record is reported to
/// the probes of a later era.
const ERAS: usize = 256;

/// What is known of detours, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    detours: Vec<Option<KnownDetour>>,
    /// What the table of calls had counted when it was last looked at.
    tallies: Vec<Tally>,
    /// Changes of probes while there were unfinished records, the oldest first.
    eras: VecDeque<Era>,
    /// The probes that detours had before the change that is being made.
    former: HashMap<u32, Probes>,
    /// The numbers of the detours whose counts belong to probes, in order. The counts of removed probes belong to
    /// none, and may be many.
    counted: Vec<Range<u32>>,
    /// The numbers of the detours that follow calls, by the probed instruction.
    followers: BTreeMap<GuestVirtAddr, BTreeSet<u32>>,
}

/// The state before a change.
#[derive(Debug)]
struct Era {
    /// For each ring, the position at which the era ended.
    ends: Vec<u64>,
    /// The former probes of those detours that have others since.
    former: HashMap<u32, Probes>,
}

impl Credit {
    /// Takes in a jump that is going to be in the text.
    pub(crate) fn number(&mut self, site: &Site, jump: &Jump, rings: &Rings) {
        let index = jump.number as usize;
        if self.detours.len() <= index {
            self.detours.resize_with(index + 1, || None);
        }
        let is_counted = self.is_counted(jump.number);
        let is_other = |known: &KnownDetour| known.at != site.virt || known.code != jump.detour.at;
        if self.known(jump.number).is_some_and(is_other) {
            self.forget(jump.number);
        }
        let known = &mut self.detours[index];
        match known {
            Some(known) => {
                known.purpose = Arc::clone(&jump.purpose);
                known.shape = jump.purpose.shape();
                if !is_counted {
                    known.counted = rings.total(jump.number);
                }
                if !are_same(&known.probes, &site.active) {
                    let former = std::mem::replace(&mut known.probes, site.active.clone());
                    self.former.insert(jump.number, former);
                }
            }
            None => {
                let follow = jump.purpose.follow;
                if follow.is_some() {
                    let followers = self.followers.entry(site.virt).or_default();
                    followers.insert(jump.number);
                }
                *known = Some(KnownDetour {
                    at: site.virt,
                    purpose: Arc::clone(&jump.purpose),
                    shape: jump.purpose.shape(),
                    records_returns: follow.filter(|it| it.records).map(|_| Shape {
                        values: Arc::clone(&jump.purpose.at_return),
                        ..Shape::of(Fetches::ALL)
                    }),
                    code: jump.detour.at,
                    full: jump.detour.full,
                    counted: rings.total(jump.number),
                    probes: site.active.clone(),
                });
            }
        }
    }

    /// Returns true if a detour's counter is read at each drain.
    pub(crate) fn is_counted(&self, number: u32) -> bool {
        let behind = self.counted.partition_point(|range| range.end <= number);
        let range = self.counted.get(behind);
        range.is_some_and(|range| range.contains(&number))
    }

    /// The counters that are to be read.
    pub(crate) fn counters(&self) -> &[Range<u32>] {
        &self.counted
    }

    /// Closes an era when all jumps have been taken in: what is in the rings now is from before the
    /// change.
    pub(crate) fn close_era(&mut self, memory: &dyn GuestMemory, rings: &Rings) {
        let known = (0..).zip(&self.detours);
        let known = known.filter_map(|(number, known)| Some((number, known.as_ref()?)));
        let somebodys = known.filter(|(_, known)| known.counts());
        self.counted = ranges(somebodys.map(|(number, _)| number));
        let former = std::mem::take(&mut self.former);
        let ends: Vec<u64> = rings.heads(memory).collect();
        if former.is_empty() || rings.tails().eq(ends.iter().copied()) {
            return;
        }
        if self.eras.len() == ERAS {
            self.eras.pop_front();
        }
        self.eras.push_back(Era { ends, former });
    }

    /// Forgets the eras of which no record is in the rings any more.
    pub(crate) fn forget_eras(&mut self, rings: &Rings) {
        let is_over = |era: &Era| {
            rings
                .tails()
                .zip(&era.ends)
                .all(|(tail, end)| !precedes(tail, *end))
        };
        while self.eras.front().is_some_and(is_over) {
            self.eras.pop_front();
        }
    }

    /// A number above those of all detours.
    pub(crate) fn numbers(&self) -> u32 {
        self.detours.len() as u32
    }

    pub(crate) fn known(&self, number: u32) -> Option<&KnownDetour> {
        self.detours.get(number as usize)?.as_ref()
    }

    /// Forgets a detour that no longer exists. Returns true if it was known.
    pub(crate) fn forget(&mut self, number: u32) -> bool {
        let known = self.detours.get_mut(number as usize);
        let Some(known) = known.and_then(Option::take) else {
            return false;
        };
        if let Entry::Occupied(mut followers) = self.followers.entry(known.at) {
            followers.get_mut().remove(&number);
            if followers.get().is_empty() {
                followers.remove();
            }
        }
        true
    }

    /// Returns true if there is a detour in which a task may wait for room in a ring.
    pub(crate) fn may_wait(&self) -> bool {
        self.detours
            .iter()
            .flatten()
            .any(|known| known.full.is_some())
    }

    /// Returns true if calls are followed.
    pub(crate) fn follows(&self) -> bool {
        !self.followers.is_empty()
    }

    /// The numbers of the detours that follow the calls of the functions at these addresses.
    pub(crate) fn following(&self, at: &BTreeSet<GuestVirtAddr>) -> BTreeSet<u32> {
        let followers = at.iter().filter_map(|at| self.followers.get(at));
        followers.flatten().copied().collect()
    }

    /// Returns true if the calls that a detour may be following are those of these return probes.
    pub(crate) fn is_followed_for(&self, number: u32, followers: &[ProbeId]) -> bool {
        self.known(number).is_none_or(|known| {
            let of_returns = known.probes.iter().filter(|probe| is_return(probe));
            of_returns
                .map(|probe| probe.id)
                .eq(followers.iter().copied())
        })
    }

    /// The shape of records with this header, if the detour leaves such records.
    pub(crate) fn shape(&self, header: RecordHeader) -> Option<&Shape> {
        self.known(header.detour)?.shape(header.returns)
    }

    /// Reports a record that was at this position of its vCPU's ring. `time` converts a time stamp
    /// to the guest's clock, and `stack` unwinds the piece of the stack that the record has.
    pub(crate) fn record(
        &self,
        at: u64,
        record: &Record<'_>,
        (table, merger): (&Table, &Merger),
        time: impl Fn(Tsc) -> u64,
        stack: impl Fn(&Record<'_>, &Registers, &[u8], u32) -> Stack,
    ) {
        let Some(known) = self.known(record.detour) else {
            return;
        };
        let returns = record.call.is_some();
        let is_read = merger.is_wanted();
        for probe in self
            .probes_at(record.vcpu, at, record.detour)
            .iter()
            .filter(|it| is_return(it) == returns)
        {
            if probe.is_removed() {
                continue;
            }
            if returns && !is_active(table, known.at, probe) {
                // As with a breakpoint, a return isn't reported when the probe is disabled by then.
                probe.miss();
                continue;
            }
            let wanted = probe.capture.fetches().filter(|_| is_read);
            if !returns && wanted.is_none() {
                probe.hit();
                continue;
            }
            let values = known.values_of(probe, record);
            if returns && !is_met(probe, record, &values) {
                continue;
            }
            probe.hit();
            if let Some(wanted) = wanted {
                let event = event(probe, known.at, record, wanted);
                let time_ns = match probe.options.context {
                    true => time(record.tsc),
                    false => 0,
                };
                let piece = match probe.options.stack {
                    0 => None,
                    _ => {
                        let all = known.recorded_values(returns);
                        record.values.bytes_of(all, &stack_piece())
                    }
                };
                let stack = piece.map(|piece| {
                    let caller = record.call.as_ref().map(|call| call.caller);
                    let registers = Registers {
                        rip: caller.unwrap_or(known.at.0),
                        ..record.registers()
                    };
                    stack(record, &registers, piece, probe.options.stack)
                });
                merger.event(&Event {
                    values,
                    stack: stack.unwrap_or_default(),
                    time_ns,
                    ..event
                });
            }
        }
    }

    /// The probes that a record at this position belongs to.
    fn probes_at(&self, vcpu: VcpuId, at: u64, detour: u32) -> &[Arc<Probe>] {
        let ring = vcpu.0 as usize;
        let is_before = |era: &&Era| era.ends.get(ring).is_some_and(|end| precedes(at, *end));
        let mut eras = self.eras.iter().filter(is_before);
        let former = eras.find_map(|era| era.former.get(&detour));
        let now = || self.known(detour).map(|known| &known.probes);
        former.or_else(now).map_or(&[], Probes::as_slice)
    }

    /// Returns true if this probe is among those that an unfinished record at this position belongs
    /// to.
    pub(crate) fn is_of(
        &self,
        probe: &Arc<Probe>,
        vcpu: VcpuId,
        at: u64,
        header: RecordHeader,
    ) -> bool {
        let probes = self.probes_at(vcpu, at, header.detour);
        is_return(probe) == header.returns && probes.iter().any(|it| Arc::ptr_eq(it, probe))
    }

    /// Counts records that will never be finished as missed.
    pub(crate) fn lose(&self, lost: &[Unfinished]) {
        for it in lost {
            let Some(header) = it.header else { continue };
            for probe in self.probes_at(it.vcpu, it.at, header.detour) {
                if is_return(probe) == header.returns {
                    probe.miss();
                }
            }
        }
    }

    /// Returns true if the calls that a detour follows are of this probe, among others.
    pub(crate) fn follows_for(&self, number: u32, probe: &Arc<Probe>) -> bool {
        let known = self.known(number);
        known.is_some_and(|known| known.probes.iter().any(|it| Arc::ptr_eq(it, probe)))
    }

    /// Takes over what the detours' counters have come to.
    pub(crate) fn count(&mut self, rings: &Rings) {
        for number in self.counted.iter().cloned().flatten() {
            let Some(Some(known)) = self.detours.get_mut(number as usize) else {
                continue;
            };
            let total = rings.total(number);
            let grown = total.wrapping_sub(known.counted);
            known.counted = total;
            if grown == 0 {
                continue;
            }
            for probe in known.probes.iter().filter(|probe| !is_return(probe)) {
                match known.purpose.capture {
                    Some(Capture::Count) => probe.hit_often(grown),
                    _ => probe.miss_often(grown),
                }
            }
        }
    }

    /// Returns true if the table of calls, which has counted `now`, may have no room for the next call, or had none
    /// for an earlier one.
    pub(crate) fn is_crowded(&self, now: &[Tally]) -> bool {
        let missed = |index: usize| self.tallies.get(index).map_or(0, |tally| tally.missed);
        let known = self.detours.iter().zip(now).enumerate();
        known
            .filter_map(|(index, (known, now))| Some((index, known.as_ref()?.purpose.follow?, now)))
            .any(|(index, follow, now)| now.active >= follow.limit || now.missed != missed(index))
    }

    /// Takes over what the table of calls has counted.
    pub(crate) fn count_calls(&mut self, table: &Table, now: Vec<Tally>) {
        self.tallies.resize(now.len(), Tally::default());
        for ((known, before), now) in self.detours.iter().zip(&self.tallies).zip(&now) {
            let new = now.since(before);
            let any = (new.missed, new.counted, new.ended) != (0, 0, 0);
            let Some(known) = known.as_ref().filter(|_| any) else {
                continue;
            };
            for probe in known.probes.iter().filter(|probe| is_return(probe)) {
                probe.miss_often(new.missed.into());
                probe.lose_calls(new.ended.into());
                if known.shape(true).is_some() {
                    continue;
                }
                match is_active(table, known.at, probe) {
                    true => probe.hit_often(new.counted.into()),
                    false => probe.miss_often(new.counted.into()),
                }
            }
        }
        self.tallies = now;
    }
}

/// Returns true if a probe notices now what happens at an address.
fn is_active(table: &Table, at: GuestVirtAddr, probe: &Arc<Probe>) -> bool {
    let site = table.site(at);
    site.is_some_and(|site| site.active.iter().any(|it| Arc::ptr_eq(it, probe)))
}

/// Makes ranges of these numbers, which rise.
pub(crate) fn ranges(numbers: impl Iterator<Item = u32>) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => ranges.push(number..number + 1),
        }
    }
    ranges
}

/// Returns true if a position of a ring is before another one, at most half of all positions away.
fn precedes(one: u64, other: u64) -> bool {
    one.wrapping_sub(other).cast_signed() < 0
}
