//! Calls that return by way of a breakpoint of ours: their beginning and their end.

use std::sync::Arc;

use guest_state::{Action, GuestMemory, GuestVirtAddr, Registers, Vcpu};

use crate::engine::Engine;
use crate::engine::actions::attendants::{AskedHits, Then};
use crate::engine::returns::replaced::Instance;
use crate::engine::returns::stack::{WORD, Word, write_word};
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::Site;
use crate::event::Detail;
use crate::probe::ProbeKind;

impl Engine {
    /// Begins to follow calls as a function with return probes is entered: RSP is at its return
    /// address.
    pub(crate) fn enter(&self, site: &Site, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
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
        let tables = vcpu.page_tables();
        let word = tables.and_then(|tables| Word::at(memory, tables, at));
        let found = word.and_then(|word| word.read(memory));
        let task = self.current_task(memory, vcpu);
        let returns = &self.returns;
        let (Some(tables), Some(word), Some(found), Some(trampoline)) =
            (tables, word, found, returns.trampoline())
        else {
            probes.for_each(|probe| probe.miss());
            return;
        };
        let shared = found == trampoline.0;
        if shared && !returns.has(at) {
            probes.for_each(|probe| probe.miss());
            return;
        }
        if !shared {
            // The stack is this task's now: any other task that had it has ended.
            returns.end_others(at, task);
        }
        let has_ended = |task| self.has_ended(memory, &[tables], task);
        let calls: Vec<_> = probes
            .filter(|probe| {
                // Tasks may have ended inside the function, and their calls with them.
                probe.begin_call() || returns.end(has_ended) && probe.begin_call() || {
                    probe.miss();
                    false
                }
            })
            .map(|probe| Instance {
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
        if shared {
            returns.join(at, calls);
        } else if word.write(memory, trampoline.0) {
            returns.begin(at, found, task, calls);
        } else {
            for call in calls {
                call.probe.end_call();
                call.probe.miss();
            }
        }
    }

    /// Undoes [`Self::enter`], as the first instruction of a function has page-faulted, to be executed again: the
    /// calls that its return probes have just begun to follow, with the return address at `at`, have not begun.
    pub(crate) fn enter_again(
        &self,
        site: &Site,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        at: u64,
    ) {
        let is_return = |probe: &&Arc<Probe>| matches!(probe.kind, ProbeKind::Return { .. });
        let probes = site.probes.iter().filter(is_return).map(Arc::as_ref);
        let probes: Vec<&Probe> = probes.collect();
        if probes.is_empty() {
            return;
        }
        let Some(tables) = vcpu.page_tables() else {
            return;
        };
        // The return address was written a moment ago.
        if let Some(caller) = self.returns.undo(at, site.virt, &probes) {
            write_word(memory, tables, at, caller);
        }
    }

    /// Ends a followed call that has returned: a vCPU is at the trampoline. RIP becomes what the
    /// return address was.
    pub(crate) fn returned(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Action {
        let at = vcpu.registers().rsp.wrapping_sub(WORD);
        let Some(replaced) = self.returns.pop(at) else {
            // The guest itself jumps there.
            return Action::Reinject;
        };
        vcpu.registers_mut().rip = replaced.caller;
        let table = self.table();
        let (mut tsc, mut asked, registers) = (None, AskedHits::new(), *vcpu.registers());
        for call in replaced.instances.into_iter().rev() {
            call.probe.end_call();
            call.probe.exit();
            if !table.switches.is_active(call.probe.id) {
                // The call began while the probe was enabled.
                call.probe.miss();
                continue;
            }
            let detail = Detail::Return {
                caller: GuestVirtAddr(replaced.caller),
                entry_tsc: call.entry_tsc,
                entry: Box::new(call.entry),
                tail_call: false,
            };
            let told = (&mut tsc, &mut asked);
            self.take_hit(&call.probe, (memory, vcpu), told, &registers, detail);
        }
        if self.hold(vcpu, asked, Then::Resume) {
            return Action::Hold;
        }
        Action::Resume
    }
}
