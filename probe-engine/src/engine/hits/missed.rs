//! Traps that come when their breakpoint has gone.

use guest_state::{GuestMemory, GuestVirtAddr, Vcpu};

use crate::engine::Engine;
use crate::probe::ProbeKind;

impl Engine {
    /// Counts what is missed when a vCPU has trapped where there is no breakpoint any more: a hit, or a call that is
    /// beginning.
    pub(crate) fn miss_departed(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        let at = GuestVirtAddr(vcpu.registers().rip);
        let probes = self.departed.at(at);
        for probe in probes.into_iter().flatten() {
            let counts = match probe.kind {
                ProbeKind::Instruction { .. } | ProbeKind::Return { .. } => true,
                // The calls that end here have been counted as missed already.
                ProbeKind::Exits { .. } => probe.address() == at,
                ProbeKind::Watch { .. } => false,
            };
            if counts && self.meets_condition(&probe, memory, vcpu) {
                probe.miss();
            }
        }
    }
}
