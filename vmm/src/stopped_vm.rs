//! A VM whose vCPUs are all out of guest mode, to be read and changed.

use std::{cell::Cell, sync::Arc, time::Instant};

use guest_state::{
    ControlRegisters, Debugging, DebuggingError, GuestMemory, GuestVirtAddr, PhysRange, Registers,
    StoppedGuest, VcpuError, VcpuId,
};
use parking_lot::Mutex;

use crate::{
    gate::Hold,
    vcpu::{KvmVcpu, Shared},
    x86_64::vcpu::{fpu::FpuRegisters, registers::SegmentRegisters},
};

/// A VM whose vCPUs are all out of guest mode until this is dropped.
pub struct StoppedVm<'a> {
    shared: &'a Shared,
    vcpus: &'a [Arc<Mutex<KvmVcpu>>],
    /// The control registers that were asked for, by vCPU: KVM is asked once, however often they are
    /// read. Nothing changes them meanwhile: before a vCPU stops, KVM completes its pending access.
    control: Vec<Cell<Option<ControlRegisters>>>,
    since: Instant,
    _hold: Hold<'a>,
}

impl<'a> StoppedVm<'a> {
    /// Waits until all vCPUs are out of guest mode, and keeps them there.
    pub(crate) fn new(shared: &'a Shared, vcpus: &'a [Arc<Mutex<KvmVcpu>>]) -> Self {
        let hold = shared.gate.stop();
        Self {
            shared,
            vcpus,
            control: vec![Cell::new(None); vcpus.len()],
            since: Instant::now(),
            _hold: hold,
        }
    }

    /// The moment when the last vCPU had left guest mode.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The address that a vCPU's `syscall` goes to, the MSR LSTAR (AMD APM vol. 2, 6.1.1). It is 0 until
    /// the kernel has set it.
    ///
    /// # Errors
    /// When there is no such vCPU, or KVM refuses.
    pub fn syscall_entry(&self, vcpu: VcpuId) -> Result<GuestVirtAddr, VcpuError> {
        self.vcpu(vcpu)?.lock().syscall_entry().map(GuestVirtAddr)
    }

    /// What a vCPU has besides general and control registers.
    ///
    /// # Errors
    /// When there is no such vCPU, or KVM refuses.
    pub fn segments(&self, vcpu: VcpuId) -> Result<SegmentRegisters, VcpuError> {
        self.vcpu(vcpu)?.lock().segments()
    }

    /// The registers of a vCPU's FPU and of SSE.
    ///
    /// # Errors
    /// When there is no such vCPU, or KVM refuses.
    pub fn fpu(&self, vcpu: VcpuId) -> Result<FpuRegisters, VcpuError> {
        self.vcpu(vcpu)?.lock().fpu()
    }

    fn vcpu(&self, id: VcpuId) -> Result<&Mutex<KvmVcpu>, VcpuError> {
        let vcpu = self.vcpus.get(id.0 as usize);
        vcpu.map(|vcpu| &**vcpu).ok_or_else(|| VcpuError {
            vcpu: id,
            what: "find the state",
            cause: format!("this VM has vCPUs 0 to {}", self.vcpus.len() - 1),
        })
    }
}

impl StoppedGuest for StoppedVm<'_> {
    fn memory(&self) -> &dyn GuestMemory {
        &self.shared.ram
    }

    fn ram(&self) -> Vec<PhysRange> {
        self.shared.ram.ranges()
    }

    fn has_gigabyte_pages(&self) -> bool {
        self.shared.gigabyte_pages
    }

    fn vcpus(&self) -> u32 {
        self.vcpus.len() as u32
    }

    fn registers(&self, vcpu: VcpuId) -> Result<Registers, VcpuError> {
        self.vcpu(vcpu)?.lock().registers()
    }

    fn set_registers(&self, vcpu: VcpuId, registers: &Registers) -> Result<(), VcpuError> {
        self.vcpu(vcpu)?.lock().move_to(registers)
    }

    fn control(&self, vcpu: VcpuId) -> Result<ControlRegisters, VcpuError> {
        let stopped = self.vcpu(vcpu)?;
        let known = &self.control[vcpu.0 as usize];
        if let Some(control) = known.get() {
            return Ok(control);
        }
        let control = stopped.lock().control()?;
        known.set(Some(control));
        Ok(control)
    }

    fn set_debugging(&self, debugging: &Debugging) -> Result<(), DebuggingError> {
        debugging.check()?;
        for (done, vcpu) in self.vcpus.iter().enumerate() {
            let mut vcpu = vcpu.lock();
            if vcpu.debugging() == debugging {
                continue;
            }
            let before = vcpu.debugging().clone();
            if let Err(error) = vcpu.set_debugging(debugging) {
                let _as_far_as_it_goes = vcpu.set_debugging(&before);
                for other in &self.vcpus[..done] {
                    let _as_far_as_it_goes = other.lock().set_debugging(&before);
                }
                return Err(error.into());
            }
        }
        Ok(())
    }
}
