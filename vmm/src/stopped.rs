//! A VM that stands still, to be looked at and changed.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use kvm_bindings::kvm_regs;

use crate::{
    gate::Hold,
    ram::GuestRam,
    sync::LockExt,
    vcpu::{ControlRegisters, Shared, Vcpu, VcpuAccessError},
    watch::{self, Watchpoint, WatchpointError},
};

/// A VM whose vCPUs all stand still.
pub struct Stopped<'a> {
    shared: &'a Shared,
    vcpus: &'a [Arc<Mutex<Vcpu>>],
    since: Instant,
    _hold: Hold<'a>,
}

impl<'a> Stopped<'a> {
    /// Waits until all vCPUs are out of guest mode, and keeps them there.
    pub(crate) fn new(shared: &'a Shared, vcpus: &'a [Arc<Mutex<Vcpu>>]) -> Self {
        let hold = shared.gate.stop();
        Self {
            shared,
            vcpus,
            since: Instant::now(),
            _hold: hold,
        }
    }

    /// When this stop began: the last vCPU was out of guest mode.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestRam {
        &self.shared.ram
    }

    /// General registers of a vCPU.
    ///
    /// # Errors
    /// When there is no such vCPU or KVM refuses.
    pub fn registers(&self, vcpu: u32) -> Result<kvm_regs, VcpuAccessError> {
        self.vcpu(vcpu)?.locked().registers()
    }

    /// Sets the general registers of a vCPU.
    ///
    /// # Errors
    /// When there is no such vCPU or KVM refuses.
    pub fn set_registers(&self, vcpu: u32, registers: &kvm_regs) -> Result<(), VcpuAccessError> {
        self.vcpu(vcpu)?.locked().move_to(registers)
    }

    /// Control registers of a vCPU.
    ///
    /// # Errors
    /// When there is no such vCPU or KVM refuses.
    pub fn control(&self, vcpu: u32) -> Result<ControlRegisters, VcpuAccessError> {
        self.vcpu(vcpu)?.locked().control()
    }

    /// Where a vCPU's `syscall` goes, the MSR LSTAR (AMD APM vol. 2, 6.1.1); 0
    /// until the kernel has set it.
    ///
    /// # Errors
    /// When there is no such vCPU or KVM refuses.
    pub fn syscall_entry(&self, vcpu: u32) -> Result<u64, VcpuAccessError> {
        self.vcpu(vcpu)?.locked().syscall_entry()
    }

    /// Whether int3s in the guest come as traps. Off, they are the guest's own
    /// business at full speed. A control thread switches it, also after the last
    /// breakpoint went away in a trap.
    ///
    /// # Errors
    /// When KVM refuses.
    pub fn set_breakpoint_exits(&self, on: bool) -> Result<(), VcpuAccessError> {
        self.vcpus
            .iter()
            .try_for_each(|vcpu| vcpu.locked().set_breakpoint_exits(on))
    }

    /// Watches these addresses, on every vCPU, also on those that the guest starts
    /// later, and no others; an empty list ends it. A hit is a
    /// [`Trap::Hardware`](crate::Trap::Hardware), whose bit of DR6 is the
    /// watchpoint's index here. A KVM that emulates kernel-mode code doesn't see
    /// hits of that code; the doctor's report has a line on it.
    ///
    /// While any is set the guest's own debug registers don't work: it may set
    /// them, but they never match.
    ///
    /// # Errors
    /// See [`WatchpointError`]; all vCPUs then watch what they did.
    pub fn set_watchpoints(&self, watchpoints: &[Watchpoint]) -> Result<(), WatchpointError> {
        watch::check(watchpoints)?;
        for (done, vcpu) in self.vcpus.iter().enumerate() {
            let mut vcpu = vcpu.locked();
            let before = vcpu.watchpoints().to_vec();
            if let Err(error) = vcpu.set_watchpoints(watchpoints) {
                let _as_far_as_it_goes = vcpu.set_watchpoints(&before);
                for other in &self.vcpus[..done] {
                    let _as_far_as_it_goes = other.locked().set_watchpoints(&before);
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn vcpu(&self, index: u32) -> Result<&Mutex<Vcpu>, VcpuAccessError> {
        self.vcpus
            .get(index as usize)
            .map(|vcpu| &**vcpu)
            .ok_or_else(|| VcpuAccessError {
                vcpu: index,
                what: "find the state",
                cause: format!("this VM has vCPUs 0 to {}", self.vcpus.len() - 1),
            })
    }
}
