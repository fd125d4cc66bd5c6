//! Return addresses that lead to a breakpoint of ours until their call is over, for return probes that are
//! breakpoints. The calls that detours follow are in a table of their own ([`crate::calls`]).
//!
//! A call is known by where on the stack its return address is: no two calls under way have that in
//! common, whatever task they belong to and wherever it sleeps. A function that jumps into another
//! one shares its return address with it; so several calls may be at one place, and end together,
//! the last one first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use guest_kernel::Kernel;
use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr, Registers, StoppedGuest, Tsc};

use crate::calls::Task;
use crate::engine::lock::{Lock, Rank};
use crate::engine::returns::stack::{WORD, read_word, write_word};
use crate::engine::returns::standing::{
    any_on_entry_stack, any_on_stack_of, interrupted_at, may_be_taken, vcpus,
};
use crate::engine::sites::probe::Probe;
use crate::probe::ProbeId;

/// The calls that are followed.
#[derive(Debug)]
pub(crate) struct Returns {
    trampoline: OnceLock<GuestVirtAddr>,
    /// The detours' trampoline may come to an int3. Stays true as long as the guest runs.
    traps: AtomicBool,
    /// By the address of the return address. Of several at one address the last returns first: in between, a tool of
    /// the guest's has put its own address there, and gives back the one that it has found.
    replaced: Lock<HashMap<u64, Vec<Replaced>>>,
}

/// A replaced return address, which leads to us.
#[derive(Debug)]
pub(crate) struct Replaced {
    /// What it was.
    pub(crate) caller: u64,
    /// The task on whose stack it is.
    pub(crate) task: Task,
    /// The calls that wait for the return, the innermost last. If there are none, the trampoline
    /// only leads on.
    pub(crate) instances: Vec<Instance>,
}

/// A call that a return probe follows (the kernel's `struct kretprobe_instance`).
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) probe: Arc<Probe>,
    pub(crate) entry_tsc: Tsc,
    pub(crate) entry: Registers,
}

impl Replaced {
    /// Counts its calls as ended, as its task has.
    fn lose(&self) {
        self.instances
            .iter()
            .for_each(|call| call.probe.lose_call());
    }

    /// The probes that wait for the return.
    pub(crate) fn probes(&self) -> impl Iterator<Item = ProbeId> {
        self.instances.iter().map(|call| call.probe.id)
    }

    /// When the first of its calls began.
    pub(crate) fn entry_tsc(&self) -> Option<Tsc> {
        self.instances.first().map(|call| call.entry_tsc)
    }
}

impl Returns {
    pub(crate) fn new() -> Self {
        Self {
            trampoline: OnceLock::new(),
            traps: AtomicBool::new(false),
            replaced: Lock::new(Rank::Returns, HashMap::new()),
        }
    }

    /// Where replaced return addresses lead. `None` without an arena.
    pub(crate) fn trampoline(&self) -> Option<GuestVirtAddr> {
        self.trampoline.get().copied()
    }

    /// Sets where they lead, as there is an arena now. Its trampoline is always at the same
    /// address.
    pub(crate) fn lead_to(&self, trampoline: GuestVirtAddr) {
        self.trampoline.get_or_init(|| trampoline);
    }

    /// Notes that the detours' trampoline may come to an int3 from now on.
    pub(crate) fn expect_traps(&self) {
        self.traps.store(true, Ordering::Relaxed);
    }

    /// Returns what `of` makes of each return address that leads to us.
    pub(crate) fn map<T>(&self, of: impl FnMut(&Replaced) -> T) -> Vec<T> {
        self.replaced.lock().values().flatten().map(of).collect()
    }

    /// Returns true if a return address in guest memory may lead to an int3 of ours.
    pub(crate) fn any(&self) -> bool {
        self.traps.load(Ordering::Relaxed) || !self.replaced.lock().is_empty()
    }

    /// Returns true if the return address at `at` leads to us.
    pub(crate) fn has(&self, at: u64) -> bool {
        self.replaced.lock().contains_key(&at)
    }

    /// Notes that the return address at `at`, which was `caller`, leads to us from now on. These calls wait for the
    /// return.
    pub(crate) fn begin(&self, at: u64, caller: u64, task: Task, instances: Vec<Instance>) {
        let replaced = Replaced {
            caller,
            task,
            instances,
        };
        self.replaced.lock().entry(at).or_default().push(replaced);
    }

    /// Adds calls that wait for the return of the newest call at `at`, which has jumped to their function.
    pub(crate) fn join(&self, at: u64, instances: Vec<Instance>) {
        let mut replaced = self.replaced.lock();
        if let Some(newest) = replaced.get_mut(&at).and_then(|several| several.last_mut()) {
            newest.instances.extend(instances);
        }
    }

    /// Undoes the calls that have begun at `entry` just now. Returns what the return address was, if no call needs it
    /// to lead to us any more.
    pub(crate) fn undo(&self, at: u64, entry: GuestVirtAddr, probes: &[&Probe]) -> Option<u64> {
        let mut replaced = self.replaced.lock();
        let newest = replaced.get_mut(&at)?.last_mut()?;
        let mut any = false;
        for probe in probes.iter().rev() {
            let is_this =
                |call: &mut Instance| call.probe.id == probe.id && call.entry.rip == entry.0;
            if let Some(call) = newest.instances.pop_if(is_this) {
                call.probe.end_call();
                any = true;
            }
        }
        let caller = newest.caller;
        if !any || !newest.instances.is_empty() {
            return None;
        }
        pop(&mut replaced, at);
        Some(caller)
    }

    /// Counts all calls of tasks that have ended, and forgets them. Returns true if there were any.
    pub(crate) fn end(&self, has_ended: impl Fn(Task) -> bool) -> bool {
        let mut any = false;
        self.replaced.lock().retain(|_, several| {
            several.retain(|replaced| {
                let ended = has_ended(replaced.task);
                if ended {
                    replaced.lose();
                }
                any |= ended;
                !ended
            });
            !several.is_empty()
        });
        any
    }
}

impl Returns {
    /// Stops following calls for removed probes. Return addresses that no probe needs are put back
    /// by [`Self::tidy`].
    pub(crate) fn forget_removed(&self) {
        for replaced in self.replaced.lock().values_mut().flatten() {
            replaced.instances.retain(|call| {
                let keep = !call.probe.is_removed();
                if !keep {
                    call.probe.end_call();
                    call.probe.miss();
                }
                keep
            });
        }
    }

    /// Puts back return addresses that no probe needs. Where the guest's own tools have taken such
    /// an address, or may be about to, it stays and leads on, as they will still give it back.
    /// Returns true if some stay only because of where vCPUs stand.
    pub(crate) fn tidy(
        &self,
        guest: &dyn StoppedGuest,
        kernel: &Kernel,
        tables: impl FnOnce() -> Vec<PageTables>,
    ) -> bool {
        let mut replaced = self.replaced.lock();
        let Some(trampoline) = self.trampoline().filter(|_| !replaced.is_empty()) else {
            return false;
        };
        let tables = tables();
        let vcpus = vcpus(guest);
        let unknown = any_on_entry_stack(&vcpus);
        let mut again = false;
        replaced.retain(|&at, several| {
            let newest = several
                .last()
                .filter(|replaced| replaced.instances.is_empty());
            let Some(caller) = newest.map(|replaced| replaced.caller) else {
                return true;
            };
            let returned = vcpus.iter().find(|(_, registers)| {
                registers.rip == trampoline.0 && registers.rsp == at.wrapping_add(WORD)
            });
            let done = if let Some((vcpu, registers)) = returned {
                let registers = Registers {
                    rip: caller,
                    ..*registers
                };
                // A vCPU whose registers can't be set doesn't run either.
                let _set = guest.set_registers(*vcpu, &registers);
                true
            } else if unknown {
                again = true;
                false
            } else if may_be_taken(guest.memory(), &tables, kernel, at) {
                again |= any_on_stack_of(&vcpus, at);
                false
            } else {
                put_back(guest.memory(), &tables, at, trampoline, caller)
            };
            if done {
                several.pop();
            }
            !several.is_empty()
        });
        again
    }

    /// Takes out the newest return address at `at`, and returns it.
    pub(crate) fn pop(&self, at: u64) -> Option<Replaced> {
        pop(&mut self.replaced.lock(), at)
    }

    /// Returns what the return address at `at`, which is now `found`, was before it led to us.
    /// That's `found` itself if it doesn't lead to us.
    pub(crate) fn leads_to(&self, at: u64, found: u64) -> u64 {
        let replaced = self.replaced.lock();
        match replaced.get(&at).and_then(|several| several.last()) {
            Some(replaced) if self.trampoline() == Some(GuestVirtAddr(found)) => replaced.caller,
            _ => found,
        }
    }

    /// Returns what the return address at `at` was before it led to us, at a time at which it did. The call began
    /// before that time and is still under way.
    pub(crate) fn led_to(&self, at: u64, time: Tsc) -> Option<u64> {
        let replaced = self.replaced.lock();
        let mut several = replaced.get(&at)?.iter().rev();
        let began = |it: &&Replaced| {
            it.instances
                .first()
                .is_some_and(|call| call.entry_tsc <= time)
        };
        Some(several.find(began)?.caller)
    }

    /// Counts the calls of other tasks with their return address at `at` as ended, and forgets
    /// them.
    pub(crate) fn end_others(&self, at: u64, task: Task) {
        let mut all = self.replaced.lock();
        let Some(several) = all.get_mut(&at) else {
            return;
        };
        several.retain(|replaced| {
            let other = replaced.task != task;
            if other {
                replaced.lose();
            }
            !other
        });
        if several.is_empty() {
            all.remove(&at);
        }
    }
}

fn pop(replaced: &mut HashMap<u64, Vec<Replaced>>, at: u64) -> Option<Replaced> {
    let several = replaced.get_mut(&at)?;
    let newest = several.pop();
    if several.is_empty() {
        replaced.remove(&at);
    }
    newest
}

/// Undoes what was done to the return address at `at`, wherever the call is: still under way, or
/// interrupted when it had just returned to the trampoline. Returns true if it is one of these.
fn put_back(
    memory: &dyn GuestMemory,
    tables: &[PageTables],
    at: u64,
    trampoline: GuestVirtAddr,
    caller: u64,
) -> bool {
    let mut done = false;
    for tables in tables {
        if read_word(memory, *tables, at) == Some(trampoline.0) {
            write_word(memory, *tables, at, caller);
            done = true;
        }
        // A call that is over may have left such a frame.
        if let Some(frame) = interrupted_at(memory, *tables, at, trampoline) {
            write_word(memory, *tables, frame, caller);
            done = true;
        }
    }
    done
}
