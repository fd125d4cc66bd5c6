//! The host's part in following calls by detours.

use std::collections::BTreeSet;

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr, MemoryError, StoppedGuest};

use crate::arena::{CALLS, TRAMPOLINE};
use crate::calls::{Call, Calls};
use crate::detour::{self, Environment};
use crate::engine::Engine;
use crate::engine::code::arena::CodeArena;
use crate::engine::returns::follower::Follower;
use crate::engine::returns::stack::{read_word, write_word};
use crate::engine::returns::standing::{
    any_on_entry_stack, any_on_stack_of, interrupted_at, may_be_taken, vcpus,
};
use crate::probe::NoJump;

/// Bytes of stack, and some more, that our code uses at most where it enters a call in the table or looks for the call
/// that returns. The code that writes the record of a return may use more: its call is marked as returning by then.
const DEPTH: u64 = 512;

impl Engine {
    /// Makes the table of calls and the code that calls return to, before any detour needs them.
    pub(crate) fn make_follower(
        &self,
        memory: &dyn GuestMemory,
        environment: &Environment,
    ) -> Result<Follower, NoJump> {
        let not = |why: &str| NoJump::NoCallTable {
            reason: why.to_owned(),
        };
        let window = self.arena.phys(CALLS.start);
        let window = window.ok_or_else(|| not("the arena has no room for a table of calls"))?;
        let calls = Calls::new(window);
        let code = detour::trampoline(environment).map_err(|error| not(&error.to_string()))?;
        calls
            .init(memory)
            .map_err(|error| not(&error.to_string()))?;
        match self.arena.write_trampoline(memory, &code) {
            Ok(true) => Ok(Follower {
                calls,
                full: code.full,
                told: code.told.map(|at| TRAMPOLINE.wrapping_add(at.into())),
                depth: code.depth,
            }),
            Ok(false) => Err(not(
                "the arena has no room for the code that calls return to",
            )),
            Err(error) => Err(not(&error.to_string())),
        }
    }

    /// Stops following the calls that began at one of these addresses; [`Self::tidy_calls`] puts their return
    /// addresses back.
    pub(crate) fn forget_followed(
        &self,
        memory: &dyn GuestMemory,
        gone: &BTreeSet<GuestVirtAddr>,
    ) -> Result<(), MemoryError> {
        let Some((calls, numbers)) = self.reader.followed_at(gone) else {
            return Ok(());
        };
        let under_way = calls.under_way(memory)?.into_iter();
        let ended = under_way.filter(|call| numbers.contains(&call.number) && !call.returns());
        for call in ended {
            calls.orphan(memory, &call)?;
            self.orphans.add(call.place());
        }
        Ok(())
    }

    /// Counts calls of tasks that have ended, and puts back return addresses that no probe needs. Those that can't be
    /// put back yet stay, and the trampoline leads their calls on, as long as it takes.
    pub(crate) fn tidy_calls(&self, guest: &dyn StoppedGuest) {
        self.end_calls(guest);
        let tables = || self.kernel_tables(guest);
        let replaced = self.returns.tidy(guest, &self.kernel, tables);
        // Where memory can't be read, calls end as they would have without this.
        let followed = self.tidy_followed(guest).unwrap_or_default();
        if replaced || followed {
            self.outstanding.add_untidy_calls();
        }
    }

    /// The detours' part of [`Self::tidy_calls`]. Returns true if it is worth while to try again
    /// soon.
    fn tidy_followed(&self, guest: &dyn StoppedGuest) -> Result<bool, MemoryError> {
        let Some(calls) = self.reader.calls() else {
            return Ok(false);
        };
        // If the guest's table marks other calls as orphans, the guest has done that, and it costs no more than this.
        let mut orphans = self.orphans.places();
        if orphans.is_empty() {
            return Ok(false);
        }
        let memory = guest.memory();
        let mut under_way = calls.under_way(memory)?;
        let is_orphan = |call: &&Call| call.is_orphan() && orphans.contains(&call.place());
        orphans = under_way
            .iter()
            .filter(is_orphan)
            .map(Call::place)
            .collect();
        let tables = self.kernel_tables(guest);
        let vcpus = vcpus(guest);
        let unknown = any_on_entry_stack(&vcpus);
        let busy: Vec<_> = vcpus
            .iter()
            .filter(|(_, registers)| CodeArena::covers(GuestVirtAddr(registers.rip)))
            .map(|(_, registers)| registers.rsp.wrapping_sub(8))
            .collect();
        // Nothing else may change a call that the trampoline is at work on.
        under_way.retain(|call| !call.returns());
        under_way.sort_by_key(|call| (call.slot, call.level));
        let mut again = false;
        for stack in under_way.chunk_by(|one, other| one.slot == other.slot) {
            let slot = stack[0].slot;
            if !stack.iter().any(|call| orphans.contains(&call.place())) {
                continue;
            }
            let stands = busy.iter().any(|rsp| slot.wrapping_sub(*rsp) < DEPTH);
            let begins = || calls.is_beginning(memory, slot);
            if unknown || stands || stack.iter().any(Call::begins) || begins()? {
                again = true;
                continue;
            }
            let Some(newest) = lead_past_orphans(memory, &calls, stack.to_vec())? else {
                continue;
            };
            if may_be_taken(memory, &tables, &self.kernel, slot) {
                again |= any_on_stack_of(&vcpus, slot);
                continue;
            }
            put_back(memory, &calls, &newest, &tables)?;
        }
        self.orphans.keep(orphans);
        Ok(again)
    }
}

/// Takes calls that no probe needs out from below others of their place; the newest of `stack` is last. Returns the
/// newest, if no probe needs that either.
///
/// The calls below it have jumped to the next one, straight or by way of a tool of the guest's that has taken the
/// return address too. Such a tool will still give the return address back.
fn lead_past_orphans(
    memory: &dyn GuestMemory,
    calls: &Calls,
    mut stack: Vec<Call>,
) -> Result<Option<Call>, MemoryError> {
    for upper in (1..stack.len()).rev() {
        let lower = upper - 1;
        if stack[lower].is_orphan() && stack[upper].caller == TRAMPOLINE.0 {
            let orphan = stack.remove(lower);
            calls.set_caller(memory, &stack[lower], orphan.caller)?;
            stack[lower].caller = orphan.caller;
            calls.remove(memory, &orphan)?;
        }
    }
    Ok(stack.pop().filter(Call::is_orphan))
}

/// Takes a call out of the table and its return address off the stack, if it is still there.
fn put_back(
    memory: &dyn GuestMemory,
    calls: &Calls,
    call: &Call,
    tables: &[PageTables],
) -> Result<(), MemoryError> {
    let mapped = tables
        .iter()
        .find(|tables| read_word(memory, **tables, call.slot) == Some(TRAMPOLINE.0));
    if let Some(tables) = mapped
        && interrupted_at(memory, *tables, call.slot, TRAMPOLINE).is_none()
    {
        write_word(memory, *tables, call.slot, call.caller);
        calls.remove(memory, call)?;
    }
    Ok(())
}
