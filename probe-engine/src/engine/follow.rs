//! Calls that detours follow, as far as the host has to do with them.

use std::collections::BTreeSet;

use super::Engine;
use super::jump::WhyNot;
use super::returns::{interrupted_at, read_word, write_word};
use crate::addr::GuestVirtAddr;
use crate::arena::{CALLS, TRAMPOLINE};
use crate::calls::{Call, Calls};
use crate::detour::{self, Environment, Full};
use crate::guest::{GuestMemory, MemoryError, StoppedGuest};
use crate::paging::PageTables;

/// Bytes of stack that the code of ours that follows calls uses at most, and some more.
const DEPTH: u64 = 512;

/// What the guest has for following calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follower {
    pub(super) calls: Calls,
    /// Where the trampoline comes to with a ring full.
    pub(super) full: Full,
}

impl Engine {
    /// Makes the table of calls and the code that calls return to, before any detour needs them.
    pub(super) fn make_follower(
        &self,
        memory: &dyn GuestMemory,
        environment: &Environment,
    ) -> Result<Follower, WhyNot> {
        let not = |why: &str| WhyNot::new("no table", why);
        let window = self.arena_phys(CALLS.start);
        let window = window.ok_or_else(|| not("the arena has no room for a table of calls"))?;
        let calls = Calls::new(window);
        let code = detour::trampoline(environment).map_err(|error| not(&error.to_string()))?;
        calls
            .init(memory)
            .map_err(|error| not(&error.to_string()))?;
        match self.write_trampoline(memory, &code.code) {
            Ok(true) => Ok(Follower {
                calls,
                full: code.full,
            }),
            Ok(false) => Err(not(
                "the arena has no room for the code that calls return to",
            )),
            Err(error) => Err(not(&error.to_string())),
        }
    }

    /// Follows no call any more that began at one of these addresses: return addresses are put back.
    ///
    /// A vCPU or a task may be in the middle of our code for a call. That call stays in the table, and ends
    /// as it would have; nobody is told of it.
    pub(super) fn forget_followed(
        &self,
        guest: &dyn StoppedGuest,
        gone: &BTreeSet<GuestVirtAddr>,
    ) -> Result<(), MemoryError> {
        let Some((calls, numbers)) = self.followed_at(gone) else {
            return Ok(());
        };
        let memory = guest.memory();
        let tables = self.kernel_tables(guest);
        let busy: Vec<_> = (0..guest.vcpus())
            .filter_map(|vcpu| guest.registers(vcpu).ok())
            .filter(|registers| self.arena_covers(GuestVirtAddr(registers.rip)))
            .map(|registers| registers.rsp.wrapping_sub(8))
            .collect();
        let is_busy = |slot: u64, tables: PageTables| {
            busy.iter().any(|rsp| slot.wrapping_sub(*rsp) < DEPTH)
                || interrupted_at(memory, tables, slot, TRAMPOLINE).is_some()
        };
        let mut under_way = calls.under_way(memory)?;
        under_way.sort_unstable_by_key(|call| call.slot);
        for nested in under_way.chunk_by(|one, other| one.slot == other.slot) {
            let slot = nested[0].slot;
            let mapped = tables
                .iter()
                .find(|tables| read_word(memory, **tables, slot) == Some(TRAMPOLINE.0));
            let Some(tables) = mapped.filter(|tables| !is_busy(slot, **tables)) else {
                continue;
            };
            let (ended, left): (Vec<&Call>, Vec<&Call>) = nested
                .iter()
                .partition(|call| numbers.contains(&call.number));
            // The call that has not jumped from another one, if it is among them, knows the caller.
            let outermost = ended.iter().find(|call| call.caller != TRAMPOLINE.0);
            if let Some(outermost) = outermost {
                match left.first() {
                    Some(other) => calls.set_caller(memory, other, outermost.caller)?,
                    None => write_word(memory, *tables, slot, outermost.caller),
                }
            }
            for call in ended {
                calls.remove(memory, call)?;
            }
        }
        Ok(())
    }
}
