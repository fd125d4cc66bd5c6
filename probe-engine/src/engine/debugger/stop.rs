//! What a debugger asks for, and where vCPUs stop for it.

use std::sync::Arc;

use guest_state::{GuestVirtAddr, StoppedGuest, Vcpu, VcpuError, VcpuId};

use crate::engine::Engine;
use crate::engine::debugger::state::{Debugger, DebuggerError, Stop, StopReason};
use crate::engine::sites::probe::Probe;
use crate::engine::sites::site::Site;
use crate::probe::ProbeId;

impl Engine {
    /// Has a debugger told of stops.
    ///
    /// # Errors
    /// There is another one.
    pub fn attach_debugger(&self, debugger: Arc<dyn Debugger>) -> Result<(), DebuggerError> {
        self.debugger.attach(debugger)
    }

    /// Has no debugger told of stops any more. Its probes are probes like others then: remove them.
    pub fn detach_debugger(&self) {
        self.debugger.detach();
    }

    /// Sets whether a probe is the debugger's: at its hits the guest is paused, and the vCPU stays in front of the
    /// instruction. At a watchpoint, it stays behind the access.
    pub fn set_debuggers(&self, probe: ProbeId, owned: bool) {
        self.debugger.own(probe, owned);
    }

    /// Has a vCPU execute one instruction of the guest's when the monitor lets it into guest mode for that; the
    /// debugger is told when it has. Code of ours doesn't count: a jump to a detour and back is no instruction.
    ///
    /// # Errors
    /// The monitor can't read its registers.
    pub fn step_for_debugger(
        &self,
        guest: &dyn StoppedGuest,
        vcpu: VcpuId,
    ) -> Result<(), VcpuError> {
        let from = self.stands_at(GuestVirtAddr(guest.registers(vcpu)?.rip));
        self.debugger.want_step(vcpu, from);
        Ok(())
    }

    /// Has no vCPU execute an instruction for the debugger any more.
    pub fn step_no_more(&self) {
        self.debugger.want_no_step();
    }

    /// Where in the guest's text a vCPU with this RIP stands: for the copy of an instruction in memory of ours, the
    /// address of the instruction; for anything else, RIP as it is.
    pub fn stands_at(&self, rip: GuestVirtAddr) -> GuestVirtAddr {
        self.original(rip).unwrap_or(rip)
    }

    /// Stops a vCPU that has come to a breakpoint of the debugger's, but not in the middle of a step of the engine's,
    /// and not where the debugger's own step begins. Returns true if the vCPU stops.
    pub(crate) fn stop_at(&self, site: &Site, vcpu: &mut dyn Vcpu) -> bool {
        if !self.debugger.is_attached() {
            return false;
        }
        let id = vcpu.id();
        let busy = vcpu.step_under_way().is_some() && !self.debugger.is_under_way(id);
        if busy || self.debugger.steps_from(id) == Some(site.virt) {
            return false;
        }
        let mut own = site.enabled().filter(|probe| self.debugger.owns(probe.id));
        let Some(probe) = own.next() else {
            return false;
        };
        probe.exit();
        probe.hit();
        self.stop(vcpu, StopReason::Breakpoint(probe.id));
        true
    }

    /// Stops a vCPU that has accessed what a watchpoint of the debugger's watches. Returns true if the watchpoint is
    /// the debugger's.
    pub(crate) fn stop_behind(&self, probe: &Probe, vcpu: &mut dyn Vcpu) -> bool {
        let owned = self.debugger.owns(probe.id);
        if owned {
            probe.hit();
            self.stop(vcpu, StopReason::Watchpoint(probe.id));
        }
        owned
    }

    /// Pauses the guest with this vCPU as it is now, and tells the debugger.
    pub(crate) fn stop(&self, vcpu: &mut dyn Vcpu, reason: StopReason) {
        vcpu.pause_guest();
        self.debugger.stop(Stop {
            vcpu: vcpu.id(),
            reason,
        });
    }
}
