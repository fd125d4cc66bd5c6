//! Return probes at the function's own returns: breakpoints at its entry and wherever it may be left. The
//! return address on the stack stays the guest's own, so its stack traces stay whole.
//!
//! A call is known by where on the stack its return address is and by its task, from its entry until the
//! task comes to a way out with RSP there again.

use std::sync::Arc;

use guest_state::{GuestMemory, GuestVirtAddr, Registers, Vcpu};

use crate::calls::Task;
use crate::engine::Engine;
use crate::engine::actions::attendants::AskedHits;
use crate::engine::returns::exits::Entered;
use crate::engine::returns::stack::{WORD, read_word};
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::Site;
use crate::engine::sites::ways_out::WayOut;
use crate::event::Detail;
use crate::probe::ProbeKind;

/// Returns true if the probe is a return probe at the function's own returns.
pub(crate) fn is_at_exits(probe: &Probe) -> bool {
    matches!(probe.kind, ProbeKind::Exits { .. })
}

/// A call that is about to begin, with the probes that will follow it and its return address.
pub(crate) struct Entering {
    probes: Vec<Arc<Probe>>,
    task: Task,
    caller: Option<u64>,
}

impl Engine {
    /// Returns the call that begins if the site's instruction, at which a vCPU is, is a function's
    /// entry.
    pub(crate) fn entering(
        &self,
        site: &Site,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Option<Entering> {
        let begins = |probe: &&Arc<Probe>| is_at_exits(probe) && probe.address() == site.virt;
        let probes: Vec<_> = site
            .enabled()
            .filter(begins)
            .filter(|probe| self.meets_condition(probe, memory, vcpu))
            .cloned()
            .collect();
        if probes.is_empty() {
            return None;
        }
        let at = vcpu.registers().rsp;
        let caller = vcpu
            .page_tables()
            .and_then(|tables| read_word(memory, tables, at));
        let caller = caller.map(|found| self.returns.leads_to(at, found));
        Some(Entering {
            probes,
            task: self.current_task(memory, vcpu),
            caller,
        })
    }

    /// Begins to follow a call, as the entry's instruction is executed. `before` are the registers
    /// in front of it.
    pub(crate) fn entered(
        &self,
        entering: Entering,
        before: &Registers,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) {
        let Entering {
            probes,
            task,
            caller,
        } = entering;
        let tables = vcpu.page_tables();
        // An earlier call with its return address there is over: its task has ended, or has left the function by a way
        // that was not seen.
        for call in self.exits.take_at(before.rsp, |_| true) {
            if call.task == task {
                call.probe.end_call();
                call.probe.miss();
            } else {
                call.probe.lose_call();
            }
        }
        let (Some(tables), Some(caller)) = (tables, caller) else {
            probes.iter().for_each(|probe| probe.miss());
            return;
        };
        for probe in probes {
            if !probe.begin_call() {
                // Tasks may have ended inside the function, and their calls with them.
                let any = self
                    .exits
                    .end(|task| self.has_ended(memory, &[tables], task));
                if !any || !probe.begin_call() {
                    probe.miss();
                    continue;
                }
            }
            let call = Entered {
                probe,
                task,
                caller: GuestVirtAddr(caller),
                entry_tsc: vcpu.tsc(),
                entry: *before,
            };
            self.exits.begin(before.rsp, call);
        }
    }

    /// Forgets the call whose return address is at `at`: the entry's instruction has raised an exception, to be
    /// executed again, so the call has not begun.
    pub(crate) fn not_entered(&self, site: &Site, at: u64) {
        let began_here = |call: &Entered| call.entry.rip == site.virt.0;
        let undone = self.exits.take_at(at, began_here);
        undone.iter().for_each(|call| call.probe.end_call());
    }

    /// Ends the calls that are left by the site's instruction. It has been executed, or is about to be if it always
    /// leads out of its function.
    pub(crate) fn left(
        &self,
        site: &Site,
        before: &Registers,
        asked: &mut AskedHits,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) {
        let rip = GuestVirtAddr(vcpu.registers().rip);
        let way = |probe: &Arc<Probe>| {
            let out = is_at_exits(probe).then(|| probe.ways_out())??;
            Some((probe.id, out.left(site.virt, rip)?))
        };
        let ways: Vec<(_, WayOut)> = site.enabled().filter_map(way).collect();
        if ways.is_empty() || !self.exits.has(before.rsp) {
            return;
        }
        let task = self.current_task(memory, vcpu);
        let way_of = |call: &Entered| {
            let found = ways.iter().find(|(id, _)| *id == call.probe.id);
            found.map(|(_, way)| *way)
        };
        let is_over = |call: &Entered| call.task == task && way_of(call).is_some();
        let ended = self.exits.take_at(before.rsp, is_over);
        let mut tsc = None;
        for call in ended.iter().rev() {
            call.probe.end_call();
            let Some(way) = way_of(call) else {
                continue;
            };
            let registers = match way.tail_call {
                true => *before,
                false => Registers {
                    rip: call.caller.0,
                    rsp: before.rsp.wrapping_add(WORD),
                    ..*before
                },
            };
            let detail = Detail::Return {
                caller: call.caller,
                entry_tsc: call.entry_tsc,
                entry: Box::new(call.entry),
                tail_call: way.tail_call,
            };
            let told = (&mut tsc, &mut *asked);
            self.take_hit(&call.probe, (memory, vcpu), told, &registers, detail);
        }
    }

    /// Forgets the calls whose end would not be seen any more: their probes were removed, disabled or lost their text.
    pub(crate) fn forget_unseen(&self) {
        let table = self.table();
        let unseen = |call: &Entered| {
            let site = table.site(GuestVirtAddr(call.entry.rip));
            let mut active = site.into_iter().flat_map(|site| site.enabled());
            !active.any(|probe| Arc::ptr_eq(probe, &call.probe))
        };
        for call in self.exits.take(unseen) {
            call.probe.end_call();
            call.probe.miss();
        }
    }
}
