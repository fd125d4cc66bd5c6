//! Breakpoints that were taken out of the text a moment ago, and who was to notice them.
//!
//! A vCPU may have trapped on one already when it is taken away under it: without a stop, as when a module
//! is freed. It executes the instruction that is there again, and its hit is lost.

use std::collections::HashMap;

use guest_state::{GuestMemory, GuestVirtAddr, Vcpu};

use super::Engine;
use super::site::Probes;
use super::table::Table;
use crate::probe::ProbeKind;

/// So many places are remembered at most.
const MOST: usize = 1 << 16;

/// The probes that were enabled where a breakpoint was.
#[derive(Debug, Default)]
pub(super) struct Departed(HashMap<u64, Probes>);

impl Departed {
    /// The table changes.
    pub(super) fn change(&mut self, before: &Table, after: &Table) {
        let is_there = |at: u64| after.site(GuestVirtAddr(at)).is_some_and(|site| site.armed);
        self.0.retain(|at, _| !is_there(*at));
        if self.0.len() > MOST {
            self.0.clear();
        }
        let gone = before
            .sites()
            .filter(|site| site.has_int3() && !is_there(site.virt.0));
        for site in gone {
            self.0.insert(site.virt.0, site.active.clone());
        }
    }
}

impl Engine {
    /// A vCPU has trapped where there is no breakpoint any more: a hit is lost, or a call that is beginning.
    pub(super) fn miss_departed(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        let at = GuestVirtAddr(vcpu.registers().rip);
        let probes = self.departed.lock().0.get(&at.0).cloned();
        for probe in probes.into_iter().flatten() {
            let counts = match probe.kind {
                ProbeKind::Instruction { .. } | ProbeKind::Return { .. } => true,
                // The calls that end here are missed already.
                ProbeKind::Exits { .. } => probe.address() == at,
                ProbeKind::Watch { .. } => false,
            };
            if counts && self.meets_condition(&probe, memory, vcpu) {
                probe.miss();
            }
        }
    }
}
