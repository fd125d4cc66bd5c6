//! The guest's table of calls and the code by which detours follow them.

use std::collections::BTreeSet;

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestVirtAddr, StoppedGuest};

use crate::calls::{Call, Calls};
use crate::detour::Full;
use crate::engine::lock::{Lock, Rank};
use crate::engine::returns::standing::{stands_at, vcpus};

/// See the module's text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Follower {
    pub(crate) calls: Calls,
    /// Where the trampoline comes to when a ring is full.
    pub(crate) full: Full,
    /// See [`crate::detour::Trampoline::told`].
    pub(crate) told: [GuestVirtAddr; 4],
    /// See [`crate::detour::Trampoline::depth`].
    pub(crate) depth: u64,
}

impl Follower {
    /// Returns the calls under way that have not been reported, and will be if their probes stay.
    pub(crate) fn untold(&self, guest: &dyn StoppedGuest, tables: &[PageTables]) -> Vec<Call> {
        let memory = guest.memory();
        let vcpus = vcpus(guest);
        let is_told = |call: &Call| {
            let rsp = call.slot.wrapping_sub(self.depth);
            call.returns() && stands_at(memory, tables, &vcpus, rsp, &self.told)
        };
        let mut calls = self.calls.under_way(memory).unwrap_or_default();
        calls.retain(|call| !call.is_orphan() && !is_told(call));
        calls
    }
}

/// Places in the table of calls whose probes have gone. Changed with the registry locked.
#[derive(Debug)]
pub(crate) struct Orphans(Lock<BTreeSet<u64>>);

impl Orphans {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Rank::Orphans, BTreeSet::new()))
    }

    pub(crate) fn add(&self, place: u64) {
        self.0.lock().insert(place);
    }

    pub(crate) fn places(&self) -> BTreeSet<u64> {
        self.0.lock().clone()
    }

    /// Sets the places that are left.
    pub(crate) fn keep(&self, places: BTreeSet<u64>) {
        *self.0.lock() = places;
    }
}
