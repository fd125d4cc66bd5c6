//! Breakpoints that were taken out of the text a moment ago, and who was to notice them.
//!
//! A vCPU may have trapped on one already when it is taken away under it: without a stop, as when a module
//! is freed. It executes the instruction that is there again, and its hit is lost.

use std::sync::Arc;

use guest_state::{GuestMemory, GuestVirtAddr, Vcpu};
use rustc_hash::FxHashMap;

use crate::engine::Engine;
use crate::engine::sites::site::{Probes, Site};
use crate::probe::ProbeKind;

/// So many places are remembered at most.
const MOST: usize = 1 << 16;

/// The probes that were enabled where a breakpoint was.
#[derive(Debug, Default)]
pub(crate) struct Departed(FxHashMap<u64, Probes>);

impl Departed {
    /// The table changes: these sites have other text than before, or none any more.
    pub(crate) fn change(&mut self, removed: &[&Arc<Site>], added: &[&Arc<Site>]) {
        if self.0.len() > MOST {
            self.0.clear();
        }
        for site in removed.iter().filter(|site| site.has_int3()) {
            self.0.insert(site.virt.0, site.active.clone());
        }
        for site in added {
            self.0.remove(&site.virt.0);
        }
    }
}

impl Engine {
    /// A vCPU has trapped where there is no breakpoint any more: a hit is lost, or a call that is beginning.
    pub(crate) fn miss_departed(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
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
