//! Watched data: at most four places, one for each debug register.

use std::sync::Arc;

use super::record::Probe;
use super::table::Table;
use super::{Action, Engine};
use crate::addr::GuestVirtAddr;
use crate::error::{NoDebugRegister, RegisterError};
use crate::event::{Detail, Event, EventSink};
use crate::guest::GuestMemory;
use crate::probe::ProbeKind;
use crate::vcpu::Vcpu;

/// How many there can be (SDM vol. 3B, 17.2).
pub(super) const DEBUG_REGISTERS: usize = 4;

/// Data that a debug register watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watchpoint {
    /// Where it is.
    pub address: GuestVirtAddr,
    /// How long: 1, 2, 4 or 8 bytes, and aligned to as many.
    pub len: u8,
    /// Reads count as well as writes.
    pub reads: bool,
}

impl Watchpoint {
    /// What a debug register can watch (SDM vol. 3B, 17.2.5).
    pub(super) fn check(
        place: &str,
        address: GuestVirtAddr,
        len: u8,
        reads: bool,
    ) -> Result<Self, RegisterError> {
        if ![1, 2, 4, 8].contains(&len) {
            let place = place.to_owned();
            return Err(RegisterError::WatchLength { place, len });
        }
        if !address.0.is_multiple_of(u64::from(len)) {
            let place = place.to_owned();
            return Err(RegisterError::WatchAlignment {
                place,
                address,
                len,
            });
        }
        Ok(Self {
            address,
            len,
            reads,
        })
    }
}

impl Table {
    /// Has the debug registers watch for these probes.
    ///
    /// # Errors
    /// There are not enough of them.
    pub(super) fn watch<'p>(
        &mut self,
        probes: impl Iterator<Item = &'p Arc<Probe>>,
    ) -> Result<(), NoDebugRegister> {
        let mut watched: Vec<(Watchpoint, Vec<Arc<Probe>>)> = Vec::new();
        for probe in probes.filter(|probe| probe.is_enabled()) {
            let ProbeKind::Watch { len, reads } = probe.kind else {
                continue;
            };
            let point = Watchpoint {
                address: probe.address(),
                len,
                reads,
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
}

impl Engine {
    /// What the monitor has to watch with the debug registers of every vCPU, in
    /// the order of the registers; ask after each change of the probes.
    pub fn watchpoints(&self) -> Vec<Watchpoint> {
        let table = self.table();
        if table.disarmed {
            return Vec::new();
        }
        table.watched.iter().map(|(point, _)| *point).collect()
    }

    /// Answers an access to watched data; DR6 tells which (SDM vol. 3B, 17.2.3).
    /// The instruction that accessed it is done.
    pub fn on_watchpoint(
        &self,
        _memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        dr6: u64,
    ) -> Action {
        let table = self.table();
        let (id, tsc, mut registers) = (vcpu.id(), vcpu.tsc(), *vcpu.registers());
        // A copy of an instruction in the arena may have done it, or code of ours there, which is none
        // of the guest's accesses.
        let went_on = self.went_on(GuestVirtAddr(registers.rip));
        registers.rip = went_on.map_or(registers.rip, |rip| rip.0);
        for (number, (_, probes)) in table.watched.iter().enumerate() {
            if dr6 & 1 << number == 0 {
                continue;
            }
            for probe in probes {
                probe.exit();
                if went_on.is_none() {
                    continue;
                }
                probe.hit();
                self.merger.event(&Event {
                    probe: probe.id,
                    vcpu: id,
                    tsc,
                    registers,
                    task: 0,
                    detail: Detail::Access,
                });
            }
        }
        Action::Resume
    }
}
