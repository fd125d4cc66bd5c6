//! Watched data: at most four places, one for each debug register.

use std::sync::Arc;

use guest_state::x86_64::DEBUG_REGISTERS;
use guest_state::{Action, Debugging, GuestMemory, GuestVirtAddr, Vcpu, Watchpoint, WatchpointSet};

use crate::engine::Engine;
use crate::engine::actions::attendants::AskedHits;
use crate::engine::sites::probe::Probe;
use crate::engine::sites::table::Table;
use crate::error::NoDebugRegister;
use crate::event::Detail;
use crate::probe::ProbeKind;

impl Table {
    /// Has the debug registers watch the data of these probes, as far as they are enabled.
    ///
    /// # Errors
    /// There are not enough of them.
    pub(crate) fn watch<'p>(
        &mut self,
        probes: impl Iterator<Item = &'p Arc<Probe>>,
    ) -> Result<(), NoDebugRegister> {
        let mut watched: Vec<(Watchpoint, Vec<Arc<Probe>>)> = Vec::new();
        for probe in probes {
            if !self.switches.is_enabled(probe.id) {
                continue;
            }
            let ProbeKind::Watch { len, access } = probe.kind else {
                continue;
            };
            let point = Watchpoint {
                address: probe.address(),
                len,
                access,
            };
            let same = watched.iter().position(|(other, _)| *other == point);
            if let Some(register) = same {
                watched[register].1.push(Arc::clone(probe));
            } else if watched.len() < DEBUG_REGISTERS {
                watched.push((point, vec![Arc::clone(probe)]));
            } else {
                return Err(NoDebugRegister {
                    place: probe.place.to_string(),
                });
            }
        }
        self.watched = watched;
        Ok(())
    }

    /// The data that the debug registers watch.
    pub(crate) fn watchpoints(&self) -> Vec<Watchpoint> {
        let watched = self.watched.iter().filter(|_| !self.switches.disarmed);
        watched.map(|(point, _)| *point).collect()
    }
}

impl Engine {
    /// What the monitor has to debug the vCPUs for, by the present probes. Each change asks the monitor for it.
    pub(crate) fn debugging(&self) -> Debugging {
        Debugging {
            breakpoints: self.wants_breakpoints(),
            watchpoints: self.table().watchpoints(),
        }
    }

    /// Answers an access to watched data. The instruction that accessed it is done.
    pub(crate) fn on_watchpoint(
        &self,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        hit: WatchpointSet,
    ) -> Action {
        let table = self.table();
        let (mut tsc, mut registers) = (None, *vcpu.registers());
        // No attendant is asked about accesses.
        let mut asked = AskedHits::new();
        // A copy of an instruction in the arena may have made the access. An access of our own code there is none of
        // the guest's.
        let went_on = self.went_on(GuestVirtAddr(registers.rip));
        registers.rip = went_on.map_or(registers.rip, |rip| rip.0);
        for (number, (_, probes)) in table.watched.iter().enumerate() {
            if !hit.contains(number) {
                continue;
            }
            for probe in probes {
                probe.exit();
                if went_on.is_some() && self.stop_behind(probe, vcpu) {
                    continue;
                }
                if went_on.is_none() || !self.meets_condition(probe, memory, vcpu) {
                    continue;
                }
                let told = (&mut tsc, &mut asked);
                self.take_hit(probe, (memory, vcpu), told, &registers, Detail::Access);
            }
        }
        Action::Resume
    }
}
