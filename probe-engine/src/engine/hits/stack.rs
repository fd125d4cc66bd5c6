//! The stack of a hit's task.
//!
//! At a breakpoint it is unwound while the vCPU stands still. A jump's record has a piece of the stack, which is
//! unwound when the record is read.

use guest_kernel::unwind::{Foreign, ReadWord, StackTrace, Surroundings, TraceEnd, Unwinder};
use guest_state::x86_64::paging::read_virt_u64;
use guest_state::{GuestMemory, GuestVirtAddr, Registers, Tsc};

use crate::arena::{TRAMPOLINE, is_ours};
use crate::calls::Calls;
use crate::engine::Engine;
use crate::event::Stack;

/// How often a stack is unwound again at most because it led into modules whose tables weren't known. Each time, the
/// tables that are known by then lead further, mostly to the stack's end.
const ROUNDS: usize = 8;
/// Bytes of a return address.
const WORD: u64 = 8;

/// The time of the stack that is read, which tells what return addresses ours have replaced on it.
#[derive(Clone, Copy)]
pub(crate) enum AsOf {
    /// Now. Calls that detours follow are in this table.
    Now(Option<Calls>),
    /// At this time. The detour has put return addresses back, except those that breakpoints have replaced.
    Time(Tsc),
}

impl Engine {
    /// Unwinds a stack, and returns at most `most` return addresses.
    ///
    /// `read` reads the stack. `task` is the task whose stack it is; its memory and the guest's tables are read by
    /// `memory`.
    pub(crate) fn stack(
        &self,
        start: &Registers,
        task: Option<u64>,
        (memory, as_of): (&dyn GuestMemory, AsOf),
        read: &mut dyn FnMut(GuestVirtAddr) -> Option<u64>,
        most: u32,
    ) -> Stack {
        let Ok(unwinder) = &self.kernel.unwind else {
            return Stack::default();
        };
        let mut foreign = |at: GuestVirtAddr, slot: GuestVirtAddr, read: &mut ReadWord<'_>| {
            let caller = match as_of {
                AsOf::Now(calls) if at == TRAMPOLINE => {
                    Some(calls?.caller_at(memory, slot.0).ok()??)
                }
                AsOf::Now(_) if self.returns.trampoline() == Some(at) => {
                    Some(self.returns.leads_to(slot.0, at.0))
                }
                AsOf::Time(time) if self.returns.trampoline() == Some(at) => {
                    Some(self.returns.led_to(slot.0, time)?)
                }
                _ => None,
            };
            if let Some(caller) = caller {
                return Some(Foreign::Returned {
                    original: GuestVirtAddr(caller),
                });
            }
            // Most addresses are the kernel's own.
            if !is_ours(at) {
                return None;
            }
            let Some(original) = self.arena.original(at) else {
                let (original, sp) = self.arena.way_out(at, slot.wrapping_add(WORD), read)?;
                return Some(Foreign::Inserted { original, sp });
            };
            let pushed = match self.arena.has_pushed(at) {
                true => WORD,
                false => 0,
            };
            Some(Foreign::Copy { original, pushed })
        };
        let tables = self.last_tables.get();
        let mut kernel = |at| read_virt_u64(memory, tables?, at).ok();
        let mut unwind = |unwinder: &Unwinder| {
            let around = Surroundings {
                memory: &mut *read,
                kernel: &mut kernel,
                foreign: &mut foreign,
                task: task.map(GuestVirtAddr),
            };
            unwinder.unwind(start, around, most as usize)
        };
        // What is known of modules is sure only while the engine waits for them to come and go.
        let modules = self.modules_of(memory);
        let modules = modules.filter(|_| self.table().waits_for_modules());
        let mut known = modules.and_then(|_| self.known_modules.unwinder());
        for _ in 0..ROUNDS {
            let now = known.as_deref().unwrap_or(unwinder);
            let trace = unwind(now);
            let lacking = trace.addresses.iter().copied();
            let lacking = lacking.filter(|at| now.lacks(*at));
            let learn = |modules| {
                let lacking: Vec<_> = lacking.collect();
                let tables = &self.known_modules;
                (!lacking.is_empty()).then(|| tables.learn(unwinder, now, modules, &lacking))?
            };
            match modules.and_then(learn) {
                Some(more) => known = Some(more),
                None => return told(&trace),
            }
        }
        told(&unwind(known.as_deref().unwrap_or(unwinder)))
    }
}

fn told(trace: &StackTrace) -> Stack {
    Stack {
        addresses: trace.addresses.iter().map(|at| at.0).collect(),
        is_cut: trace.end != TraceEnd::Complete,
    }
}
