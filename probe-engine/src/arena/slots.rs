//! Slots: small pieces of code, each for one instruction.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::INT3;

use super::areas::{HOLE, SLOT_AREA, SLOT_LEN, SLOTS};
use super::error::SlotError;
use crate::calls::layout;

/// A slot that has been given out. It is in use as long as there is a clone of this; its code stays
/// longer, because a vCPU or a preempted task may be in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Where it begins.
    pub address: GuestVirtAddr,
    in_use: Arc<()>,
}

/// The topmost slots, which are never given out: [`TRAMPOLINE`], and below it the detours' trampoline.
pub(super) const RESERVED: usize = layout::TRAMPOLINES as usize / SLOT_LEN;
/// The topmost slot.
pub(super) const TRAMPOLINE: GuestVirtAddr = address(0);

/// Where the slot of a number begins. They are counted from the top of the hole downwards.
pub(super) const fn address(number: usize) -> GuestVirtAddr {
    let from_top = (number as u64 + 1) * SLOT_LEN as u64;
    GuestVirtAddr(HOLE.end.0 - from_top)
}

/// An address inside a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inside {
    /// Where the slot begins.
    pub slot: GuestVirtAddr,
    /// The instruction that it is for.
    pub at: GuestVirtAddr,
    /// How many bytes the address is from the slot's start.
    pub offset: usize,
}

/// The number of the slot that an address is in.
pub(super) fn number_at(at: GuestVirtAddr) -> Option<usize> {
    let from_start = at.0.wrapping_sub(SLOT_AREA.start.0);
    let above = usize::try_from(from_start).ok()? / SLOT_LEN;
    (SLOTS - 1).checked_sub(above)
}

/// Pads `code` with int3s to the slot's end, if it fits.
pub(super) fn padded(code: &[u8]) -> Option<[u8; SLOT_LEN]> {
    let mut bytes = [INT3; SLOT_LEN];
    bytes.get_mut(..code.len())?.copy_from_slice(code);
    Some(bytes)
}

/// What a slot holds.
#[derive(Debug)]
struct PlacedSlot {
    at: GuestVirtAddr,
    code: Vec<u8>,
    /// Shared with all users of the slot.
    in_use: Arc<()>,
}

impl PlacedSlot {
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.in_use) == 1
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots {
    /// By number, as many as there have been so far.
    occupants: Vec<Option<PlacedSlot>>,
    /// The numbers of reclaimed ones.
    free: Vec<usize>,
    /// The slots by their instruction, several where its bytes have changed.
    of: BTreeMap<GuestVirtAddr, Vec<usize>>,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            occupants: std::iter::repeat_with(|| None).take(RESERVED).collect(),
            free: Vec::new(),
            of: BTreeMap::new(),
        }
    }
}

impl Slots {
    /// Returns the slot that an instruction has or had, for one more use.
    pub(super) fn again<E>(
        &self,
        at: GuestVirtAddr,
        build: impl Fn(GuestVirtAddr) -> Result<Vec<u8>, E>,
    ) -> Result<Option<Slot>, SlotError<E>> {
        for number in self.of.get(&at).map_or(&[][..], Vec::as_slice) {
            let occupant = self.occupants.get(*number).and_then(Option::as_ref);
            let Some(occupant) = occupant else {
                continue;
            };
            let address = address(*number);
            if occupant.code == build(address).map_err(SlotError::Build)? {
                let in_use = Arc::clone(&occupant.in_use);
                return Ok(Some(Slot { address, in_use }));
            }
        }
        Ok(None)
    }

    /// Returns the number of a slot that holds nothing. It stays so until it is occupied.
    pub(super) fn vacant(&self) -> Option<usize> {
        let next = self.occupants.len();
        let fresh = (next < SLOTS).then_some(next);
        self.free.last().copied().or(fresh)
    }

    /// How many slots hold nothing.
    pub(super) fn vacancies(&self) -> usize {
        self.free.len() + SLOTS - self.occupants.len()
    }

    /// Gives the slot that [`Self::vacant`] named to an instruction.
    pub(super) fn occupy(&mut self, number: usize, at: GuestVirtAddr, code: Vec<u8>) -> Slot {
        if self.free.last() == Some(&number) {
            self.free.pop();
        }
        if self.occupants.len() <= number {
            self.occupants.resize_with(number + 1, || None);
        }
        let in_use = Arc::default();
        self.occupants[number] = Some(PlacedSlot {
            at,
            code,
            in_use: Arc::clone(&in_use),
        });
        self.of.entry(at).or_default().push(number);
        Slot {
            address: address(number),
            in_use,
        }
    }

    pub(super) fn discard(&mut self, range: &Range<GuestVirtAddr>) {
        self.of.retain(|at, _| !range.contains(at));
    }

    pub(super) fn idle(&self) -> usize {
        let all = self.occupants.iter().flatten();
        all.filter(|it| it.is_idle()).count()
    }

    /// Empties the idle slots that aren't `kept`, and says how many.
    pub(super) fn free(&mut self, kept: impl Fn(usize) -> bool) -> usize {
        let before = self.free.len();
        for (number, place) in self.occupants.iter_mut().enumerate() {
            let idle = place.as_ref().is_some_and(PlacedSlot::is_idle);
            if idle && !kept(number) {
                *place = None;
                self.free.push(number);
            }
        }
        let occupants = &self.occupants;
        self.of.retain(|_, numbers| {
            numbers.retain(|number| occupants.get(*number).is_some_and(Option::is_some));
            !numbers.is_empty()
        });
        self.free.len() - before
    }

    pub(super) fn at(&self, rip: GuestVirtAddr) -> Option<Inside> {
        let number = number_at(rip)?;
        let occupant = self.occupants.get(number)?.as_ref()?;
        let slot = address(number);
        Some(Inside {
            slot,
            at: occupant.at,
            offset: (rip.0 - slot.0) as usize,
        })
    }
}
