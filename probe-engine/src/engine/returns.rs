//! Return probes that are breakpoints: the return address of a call leads to a breakpoint of ours until
//! the call is over. Calls that detours follow are none of these ([`crate::calls`]).
//!
//! A call is known by where on the stack its return address is: no two calls under way have that
//! in common, whatever task they belong to and wherever it sleeps. A function that jumps into
//! another one shares its return address with it; so several calls may be at one place, and end
//! together, the last one first.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::record::Probe;
use super::site::Site;
use super::{Action, Engine};
use crate::addr::{GuestPhysAddr, GuestVirtAddr, ProbeId, Tsc};
use crate::event::{Detail, Event, EventSink};
use crate::guest::{GuestMemory, StoppedGuest};
use crate::paging::{self, PageTables};
use crate::probe::ProbeKind;
use crate::vcpu::{Registers, Vcpu, page_tables};

/// Bytes of a return address.
const WORD: u64 = 8;

/// The calls that are followed.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// Where their return addresses lead. None without an arena.
    pub(super) trampoline: Option<GuestVirtAddr>,
    /// By the address of the return address.
    frames: HashMap<u64, Frame>,
    /// The detours' trampoline may come to an int3, as long as the guest runs.
    pub(super) traps: bool,
}

/// One return address that leads to us.
#[derive(Debug)]
struct Frame {
    /// What it was.
    caller: u64,
    /// The innermost call last.
    calls: Vec<Call>,
}

/// A call under way.
#[derive(Debug)]
struct Call {
    probe: Arc<Probe>,
    entry_tsc: Tsc,
    entry: Registers,
}

impl Returns {
    /// Whether a return address in guest memory may lead to an int3 of ours.
    pub(super) fn any(&self) -> bool {
        self.traps || !self.frames.is_empty()
    }

    /// Forgets the calls of a probe that can't return any more, because something
    /// else is on the stack where their return address was. Whether there were any.
    fn forget_dead(
        &mut self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        probe: ProbeId,
    ) -> bool {
        let Some(trampoline) = self.trampoline else {
            return false;
        };
        let before = self.frames.len();
        self.frames.retain(|&at, frame| {
            let of_probe = frame.calls.iter().any(|call| call.probe.id == probe);
            let alive = !of_probe || is_pending(memory, tables, at, trampoline);
            if !alive {
                frame.calls.iter().for_each(|call| call.probe.end_call());
            }
            alive
        });
        self.frames.len() < before
    }
}

impl Engine {
    /// A function with return probes is entered: RSP is at its return address.
    pub(super) fn enter(&self, site: &Site, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        let is_return = |probe: &&Arc<Probe>| matches!(probe.kind, ProbeKind::Return { .. });
        let probes: Vec<_> = site
            .enabled()
            .filter(is_return)
            .filter(|probe| self.meets_condition(probe, memory, vcpu))
            .collect();
        if probes.is_empty() {
            return;
        }
        let probes = probes.into_iter();
        let at = vcpu.registers().rsp;
        let tables = page_tables(vcpu);
        let word = tables.and_then(|tables| Word::at(memory, tables, at));
        let found = word.and_then(|word| word.read(memory));
        let mut returns = self.returns();
        let (Some(tables), Some(word), Some(found), Some(trampoline)) =
            (tables, word, found, returns.trampoline)
        else {
            probes.for_each(|probe| probe.miss());
            return;
        };
        let shared = found == trampoline.0;
        if !shared && let Some(stale) = returns.frames.remove(&at) {
            // That call never returned: its task has ended inside.
            stale.calls.iter().for_each(|call| call.probe.end_call());
        }
        if shared && !returns.frames.contains_key(&at) {
            probes.for_each(|probe| probe.miss());
            return;
        }
        let calls: Vec<_> = probes
            .filter(|probe| {
                // Tasks may have ended inside the function, and their calls with them.
                probe.begin_call()
                    || returns.forget_dead(memory, tables, probe.id) && probe.begin_call()
                    || {
                        probe.miss();
                        false
                    }
            })
            .map(|probe| Call {
                probe: Arc::clone(probe),
                entry_tsc: vcpu.tsc(),
                entry: Registers {
                    rip: site.virt.0,
                    ..*vcpu.registers()
                },
            })
            .collect();
        if calls.is_empty() {
            return;
        }
        if let Some(frame) = returns.frames.get_mut(&at) {
            frame.calls.extend(calls);
        } else if word.write(memory, trampoline.0) {
            let frame = Frame {
                caller: found,
                calls,
            };
            returns.frames.insert(at, frame);
        } else {
            for call in calls {
                call.probe.end_call();
                call.probe.miss();
            }
        }
    }

    /// The first instruction of a function has page-faulted, to be executed again: the calls that
    /// its return probes have just begun to follow, with the return address at `at`, have not begun.
    pub(super) fn enter_again(
        &self,
        site: &Site,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        at: u64,
    ) {
        let is_return = |probe: &&Arc<Probe>| matches!(probe.kind, ProbeKind::Return { .. });
        let mut probes = site.probes.iter().rev().filter(is_return).peekable();
        if probes.peek().is_none() {
            return;
        }
        let tables = page_tables(vcpu);
        let mut returns = self.returns();
        let Some((tables, frame)) = tables.zip(returns.frames.get_mut(&at)) else {
            return;
        };
        for probe in probes {
            let last = frame
                .calls
                .pop_if(|call| call.probe.id == probe.id && call.entry.rip == site.virt.0);
            last.iter().for_each(|call| call.probe.end_call());
        }
        if frame.calls.is_empty() {
            // It was written a moment ago.
            write_word(memory, tables, at, frame.caller);
            returns.frames.remove(&at);
        }
    }

    /// A vCPU is at the trampoline: a followed call has returned. RIP becomes
    /// what the return address was.
    pub(super) fn returned(&self, vcpu: &mut dyn Vcpu) -> Action {
        let at = vcpu.registers().rsp.wrapping_sub(WORD);
        let Some(frame) = self.returns().frames.remove(&at) else {
            // The guest itself jumps there.
            return Action::GiveBack;
        };
        vcpu.registers_mut().rip = frame.caller;
        let disarmed = self.table().disarmed;
        let (id, tsc, registers) = (vcpu.id(), vcpu.tsc(), *vcpu.registers());
        for call in frame.calls.into_iter().rev() {
            call.probe.end_call();
            call.probe.exit();
            if disarmed || !call.probe.is_enabled() {
                continue;
            }
            call.probe.hit();
            let Some(wanted) = call.probe.options.capture.registers() else {
                continue;
            };
            self.merger.event(&Event {
                probe: call.probe.id,
                vcpu: id,
                tsc,
                registers: registers.only(wanted),
                task: 0,
                detail: Detail::Return {
                    caller: GuestVirtAddr(frame.caller),
                    entry_tsc: call.entry_tsc,
                    entry: call.entry.only(wanted),
                },
            });
        }
        Action::Resume
    }

    /// Follows no call for these probes any more: return addresses that nobody
    /// needs are put back.
    pub(super) fn forget_calls(&self, guest: &dyn StoppedGuest, ids: &BTreeSet<ProbeId>) {
        let mut returns = self.returns();
        let Some(trampoline) = returns.trampoline else {
            return;
        };
        let tables = self.kernel_tables(guest);
        let mut done = Vec::new();
        for (&at, frame) in &mut returns.frames {
            frame.calls.retain(|call| {
                let keep = !ids.contains(&call.probe.id);
                if !keep {
                    call.probe.end_call();
                }
                keep
            });
            if frame.calls.is_empty() {
                done.push((at, frame.caller));
            }
        }
        let stopped_at_trampoline = stopped_at(guest, trampoline);
        for (at, caller) in done {
            returns.frames.remove(&at);
            for tables in &tables {
                put_back(guest.memory(), *tables, at, trampoline, caller);
            }
            for &(vcpu, registers) in &stopped_at_trampoline {
                if registers.rsp == at.wrapping_add(WORD) {
                    let registers = Registers {
                        rip: caller,
                        ..registers
                    };
                    // A vCPU whose registers can't be set doesn't run either.
                    let _set = guest.set_registers(vcpu, &registers);
                }
            }
        }
    }

    /// The kernel's own page tables, then those that the vCPUs use: until the
    /// kernel has set its own up, only these map its stacks.
    pub(super) fn kernel_tables(&self, guest: &dyn StoppedGuest) -> Vec<PageTables> {
        let used: Vec<_> = (0..guest.vcpus())
            .filter_map(|vcpu| guest.control(vcpu).ok())
            .filter_map(|control| control.page_tables().ok())
            .collect();
        let own = self
            .kernel_root()
            .zip(used.first())
            .map(|(root, used)| PageTables { root, ..*used });
        own.into_iter().chain(used).collect()
    }
}

/// vCPUs about to execute the instruction at `at`.
fn stopped_at(guest: &dyn StoppedGuest, at: GuestVirtAddr) -> Vec<(u32, Registers)> {
    (0..guest.vcpus())
        .filter_map(|vcpu| Some((vcpu, guest.registers(vcpu).ok()?)))
        .filter(|(_, registers)| registers.rip == at.0)
        .collect()
}

/// Whether the call with its return address at `at` may still come to the
/// trampoline: it is under way, or was interrupted when it had just come there.
fn is_pending(
    memory: &dyn GuestMemory,
    tables: PageTables,
    at: u64,
    trampoline: GuestVirtAddr,
) -> bool {
    read_word(memory, tables, at) == Some(trampoline.0)
        || interrupted_at(memory, tables, at, trampoline).is_some()
}

/// Where the interrupt keeps RIP that came when the call with its return address at `at` had just returned
/// to the trampoline: the processor has pushed RIP, CS, RFLAGS, RSP and SS below, on a stack aligned to 16
/// bytes (SDM vol. 3A, 6.14.2). `None` if there was none.
pub(super) fn interrupted_at(
    memory: &dyn GuestMemory,
    tables: PageTables,
    at: u64,
    trampoline: GuestVirtAddr,
) -> Option<u64> {
    let rsp = at.wrapping_add(WORD);
    let frame = (rsp & !15).wrapping_sub(5 * WORD);
    let word = |at| read_word(memory, tables, at);
    let is_it =
        word(frame) == Some(trampoline.0) && word(frame.wrapping_add(3 * WORD)) == Some(rsp);
    is_it.then_some(frame)
}

/// Undoes what was done to the return address at `at`, wherever the call is:
/// still under way, or interrupted when it had just returned to the trampoline.
fn put_back(
    memory: &dyn GuestMemory,
    tables: PageTables,
    at: u64,
    trampoline: GuestVirtAddr,
    caller: u64,
) {
    if read_word(memory, tables, at) == Some(trampoline.0) {
        write_word(memory, tables, at, caller);
    }
    if let Some(frame) = interrupted_at(memory, tables, at, trampoline) {
        write_word(memory, tables, frame, caller);
    }
}

/// A word of the stack, translated.
#[derive(Debug, Clone, Copy)]
struct Word {
    at: GuestPhysAddr,
    /// By the guest's page tables: where its stack is, is the guest's choice.
    writable: bool,
}

impl Word {
    /// None where nothing is mapped, and for a word that isn't aligned, as no return
    /// address of the kernel's is.
    fn at(memory: &dyn GuestMemory, tables: PageTables, at: u64) -> Option<Self> {
        let aligned = at.is_multiple_of(WORD);
        let page = aligned.then(|| paging::walk(memory, tables, GuestVirtAddr(at)))?;
        let page = page.ok()?;
        Some(Self {
            at: page.phys,
            writable: page.writable,
        })
    }

    fn read(self, memory: &dyn GuestMemory) -> Option<u64> {
        let mut word = [0; WORD as usize];
        memory.read(self.at, &mut word).ok()?;
        Some(u64::from_le_bytes(word))
    }

    fn write(self, memory: &dyn GuestMemory, word: u64) -> bool {
        self.writable && memory.write_as_guest(self.at, &word.to_le_bytes()).is_ok()
    }
}

pub(super) fn read_word(memory: &dyn GuestMemory, tables: PageTables, at: u64) -> Option<u64> {
    Word::at(memory, tables, at)?.read(memory)
}

/// Nothing is written where nothing is mapped, or the guest can't write.
pub(super) fn write_word(memory: &dyn GuestMemory, tables: PageTables, at: u64, word: u64) {
    if let Some(place) = Word::at(memory, tables, at) {
        place.write(memory, word);
    }
}
