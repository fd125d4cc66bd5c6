//! Detours in the arena: each is for one address, and stays until no task can be in it any more.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::PAGE_SIZE;

use super::areas::{HOLE, SLOT_AREA};
use super::error::PlaceError;
use super::space::{Placement, Space};
use crate::detour::{Detour, JUMP_LEN, Pattern, WayOut};

pub(super) const PAGE: usize = PAGE_SIZE as usize;
/// How many of an instruction's idle detours, the last ones, are looked at before it gets a new
/// one.
const REMEMBERED: usize = 16;
/// How often a detour is built anew because it got longer at the place that it was given.
const TRIES: usize = 4;

/// A detour that has been given out. It is in use as long as there is a clone of [`Self::detour`]; its code
/// stays longer, because a vCPU or a preempted task may be in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Its number: small, and no other detour's as long as anything of this one is left.
    pub number: u32,
    /// Where the probe's jump leads: to the detour, or to a jump to it.
    pub target: GuestVirtAddr,
    /// The probe's jump.
    pub jump: [u8; JUMP_LEN],
    /// The detour itself.
    pub detour: Arc<Detour>,
}

/// An address inside a detour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InDetour {
    /// The detour's number.
    pub number: u32,
    /// The instruction that it is for.
    pub at: GuestVirtAddr,
    /// How many bytes the address is from the start of its code; 0 also for the jump to it.
    pub offset: u32,
    /// The instruction of the guest's that is executed there, or where execution goes on behind the last one; `None` in
    /// code of ours.
    pub original: Option<GuestVirtAddr>,
    /// Whether that is a call that has pushed its return address, and has yet to jump.
    pub has_pushed: bool,
}

#[derive(Debug)]
pub(super) struct PlacedDetour {
    at: GuestVirtAddr,
    target: GuestVirtAddr,
    /// Shared with all users of the detour.
    detour: Arc<Detour>,
}

impl PlacedDetour {
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.detour) == 1
    }

    pub(super) fn placed(&self, number: u32, jump: [u8; JUMP_LEN]) -> Placed {
        Placed {
            number,
            target: self.target,
            jump,
            detour: Arc::clone(&self.detour),
        }
    }

    fn placement(&self) -> Placement {
        Placement {
            target: self.target,
            code: self.detour.at,
        }
    }
}

/// All detours.
#[derive(Debug)]
pub(super) struct Detours {
    pub(super) space: Space,
    /// By number.
    occupants: Vec<Option<PlacedDetour>>,
    /// Numbers of those that were reclaimed.
    vacant: Vec<u32>,
    /// By the probed instruction, several where its bytes or what is wanted of it have changed.
    of: BTreeMap<GuestVirtAddr, Vec<u32>>,
    /// Where code or springboards begin: the end, and the number.
    spans: BTreeMap<GuestVirtAddr, (GuestVirtAddr, u32)>,
    /// Pages that have been filled.
    pub(super) pages: HashSet<u64>,
}

impl Detours {
    /// Detours in memory for code of `len` bytes, of which the first `reserved` are for something
    /// else.
    pub(super) fn new(len: u64, reserved: u64) -> Self {
        let start = GuestVirtAddr(HOLE.end.0.saturating_sub(len).saturating_add(reserved));
        Self {
            space: Space::new(start..SLOT_AREA.start),
            occupants: Vec::new(),
            vacant: Vec::new(),
            of: BTreeMap::new(),
            spans: BTreeMap::new(),
            pages: HashSet::new(),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.occupants.iter().flatten().count()
    }

    /// Returns the detour that an instruction has or had, for one more use, unless it is one of the `busy` ones.
    pub(super) fn again<E>(
        &self,
        at: GuestVirtAddr,
        pattern: Pattern,
        busy: &BTreeSet<u32>,
        build: impl Fn(u32, GuestVirtAddr) -> Result<Detour, E>,
    ) -> Result<Option<Placed>, E> {
        let numbers = self.of.get(&at).map_or(&[][..], Vec::as_slice);
        let last = numbers.iter().rev().filter(|it| !busy.contains(it));
        for number in last.take(REMEMBERED) {
            let occupant = self.occupants.get(*number as usize);
            let Some(occupant) = occupant.and_then(Option::as_ref) else {
                continue;
            };
            let Some(jump) = pattern.jump(at, occupant.target) else {
                continue;
            };
            if *occupant.detour == build(*number, occupant.detour.at)? {
                return Ok(Some(occupant.placed(*number, jump)));
            }
        }
        Ok(None)
    }

    /// Returns a number below `numbers` that no detour has. It stays so until it is occupied.
    pub(super) fn number(&self, numbers: u32) -> Option<u32> {
        let fresh = || u32::try_from(self.occupants.len()).ok();
        let number = self.vacant.last().copied().or_else(fresh);
        number.filter(|number| *number < numbers)
    }

    pub(super) fn has(&self, number: u32) -> bool {
        matches!(self.occupants.get(number as usize), Some(Some(_)))
    }

    /// Builds a detour at a place where it fits.
    pub(super) fn build<E>(
        &mut self,
        at: GuestVirtAddr,
        pattern: Pattern,
        build: impl Fn(GuestVirtAddr) -> Result<Detour, E>,
    ) -> Result<(Placement, Detour), PlaceError<E>> {
        let no_address = |space: &Self| PlaceError::NoAddress {
            at,
            idle: space.idle(),
        };
        // Its length depends on where it is, but hardly.
        let mut len = 0;
        for _ in 0..TRIES {
            let Some(placement) = self.space.place(at, pattern, len.max(JUMP_LEN)) else {
                return Err(no_address(self));
            };
            let detour = match build(placement.code) {
                Ok(detour) => detour,
                Err(error) => {
                    self.space.undo(placement, len.max(JUMP_LEN));
                    return Err(PlaceError::Build(error));
                }
            };
            let used = detour.code.len();
            if used <= len && detour.at == placement.code {
                self.space.shorten(placement.code, len, used);
                return Ok((placement, detour));
            }
            self.space.undo(placement, len.max(JUMP_LEN));
            len = len.max(used);
        }
        Err(no_address(self))
    }

    /// Gives the number that [`Self::number`] named to a detour.
    pub(super) fn occupy(
        &mut self,
        number: u32,
        at: GuestVirtAddr,
        placement: Placement,
        detour: Detour,
    ) -> &PlacedDetour {
        if self.vacant.last() == Some(&number) {
            self.vacant.pop();
        }
        let index = number as usize;
        if self.occupants.len() <= index {
            self.occupants.resize_with(index + 1, || None);
        }
        for (start, len) in parts(placement, detour.code.len()) {
            let end = start.wrapping_add(len as u64);
            self.spans.insert(start, (end, number));
        }
        self.of.entry(at).or_default().push(number);
        self.occupants[index].insert(PlacedDetour {
            at,
            target: placement.target,
            detour: Arc::new(detour),
        })
    }

    pub(super) fn discard(&mut self, range: &Range<GuestVirtAddr>) {
        self.of.retain(|at, _| !range.contains(at));
    }

    pub(super) fn idle(&self) -> usize {
        let all = self.occupants.iter().flatten();
        all.filter(|it| it.is_idle()).count()
    }

    /// The number of the detour that an address is in.
    pub(super) fn number_at(&self, rip: GuestVirtAddr) -> Option<u32> {
        let (_, (end, number)) = self.spans.range(..=rip).next_back()?;
        (rip < *end).then_some(*number)
    }

    /// Returns where a detour's own code at an address leads to, and where the detour is.
    pub(super) fn way_out(&self, rip: GuestVirtAddr) -> Option<(WayOut, GuestVirtAddr)> {
        let inside = self.at(rip).filter(|inside| inside.original.is_none())?;
        let occupant = self.occupants.get(inside.number as usize)?.as_ref()?;
        Some((occupant.detour.way_out(inside.offset)?, occupant.detour.at))
    }

    pub(super) fn at(&self, rip: GuestVirtAddr) -> Option<InDetour> {
        let number = self.number_at(rip)?;
        let occupant = self.occupants.get(number as usize)?.as_ref()?;
        let offset = rip.offset_from(occupant.detour.at);
        let inside = offset.filter(|offset| *offset < occupant.detour.code.len() as u64);
        let original = |offset| occupant.detour.original(offset as u32);
        let has_pushed = |offset| occupant.detour.has_pushed(offset as u32);
        Some(InDetour {
            number,
            at: occupant.at,
            offset: inside.unwrap_or(0) as u32,
            original: inside
                .and_then(original)
                .map(|by| occupant.at.wrapping_add(by.into())),
            has_pushed: inside.is_some_and(has_pushed),
        })
    }

    /// Forgets the idle detours that are not among `kept`, and says how many.
    pub(super) fn free(&mut self, kept: impl Fn(u32) -> bool) -> usize {
        let mut freed = 0;
        for (number, place) in (0..).zip(&mut self.occupants) {
            let idle = place.as_ref().is_some_and(PlacedDetour::is_idle);
            if !idle || kept(number) {
                continue;
            }
            if let Some(occupant) = place.take() {
                let (placement, len) = (occupant.placement(), occupant.detour.code.len());
                for (start, _) in parts(placement, len) {
                    self.spans.remove(&start);
                }
                self.space.remove(placement, len);
                self.vacant.push(number);
                freed += 1;
            }
        }
        let occupants = &self.occupants;
        let there = |number: &u32| matches!(occupants.get(*number as usize), Some(Some(_)));
        self.of.retain(|_, numbers| {
            numbers.retain(there);
            !numbers.is_empty()
        });
        freed
    }
}

/// Returns where the code is, and the springboard if there is one, each with its length.
pub(super) fn parts(
    placement: Placement,
    len: usize,
) -> impl Iterator<Item = (GuestVirtAddr, usize)> {
    let springboard = placement.target != placement.code;
    let springboard = springboard.then_some((placement.target, JUMP_LEN));
    std::iter::once((placement.code, len)).chain(springboard)
}
