//! A vCPU of KVM's: its state, which other threads read and change while it is out of guest mode.

use std::ptr;

use guest_state::{ControlRegisters, Debugging, GuestVirtAddr, Registers, VcpuError, VcpuId};
use kvm_bindings::{KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE};
use kvm_ioctls::{SyncReg, VcpuFd};

use super::step_timer::StepTimer;
use crate::x86_64::vcpu::{
    capabilities::VcpuCapabilities,
    clock::GuestClock,
    context::VcpuContext,
    exit::BreakpointExit,
    fpu::{self, FpuRegisters},
    guest_debug::DebugState,
    msr,
    registers::{self, SegmentRegisters},
};

/// A vCPU of KVM's. The holder of its lock may read and change it while it is out of
/// guest mode.
pub(crate) struct KvmVcpu {
    pub(super) id: VcpuId,
    pub(super) fd: VcpuFd,
    /// What this KVM offers.
    pub(super) capabilities: VcpuCapabilities,
    pub(super) debugging: DebugState,
    pub(super) breakpoint_exit: BreakpointExit,
    /// What is added to the host's time stamp counter to get the vCPU's; `None` where it isn't constant.
    pub(super) tsc_offset: Option<u64>,
    /// The vCPU's thread makes it at its first step.
    pub(super) step_timer: Option<StepTimer>,
}

impl KvmVcpu {
    pub(crate) fn new(id: VcpuId, mut fd: VcpuFd, capabilities: VcpuCapabilities) -> Self {
        if capabilities.sync_regs {
            fd.set_sync_valid_reg(SyncReg::Register);
            fd.set_sync_valid_reg(SyncReg::VcpuEvents);
        }
        Self {
            id,
            fd,
            capabilities,
            debugging: DebugState::default(),
            breakpoint_exit: BreakpointExit::DebugExit,
            tsc_offset: None,
            step_timer: None,
        }
    }

    /// The clock that tells its counter at a time of the host's clock.
    pub(crate) fn clock(&self) -> GuestClock {
        GuestClock::new(&self.fd)
    }

    /// The general registers, of a vCPU that is out of guest mode.
    pub(crate) fn registers(&self) -> Result<Registers, VcpuError> {
        let regs = self.fd.get_regs();
        regs.map(registers::from_kvm)
            .map_err(|e| self.refused("read the registers", &e))
    }

    /// Sets the general registers from outside. A step that has yet to execute its
    /// instruction executes the one that RIP is at now.
    pub(crate) fn move_to(&mut self, registers: &Registers) -> Result<(), VcpuError> {
        let before = self.registers()?.rip;
        self.set_registers(registers)?;
        match &mut self.debugging.step {
            Some(step) if step.start == before => {
                step.start = registers.rip;
                self.set_debug(0)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn set_registers(&self, registers: &Registers) -> Result<(), VcpuError> {
        self.fd
            .set_regs(&registers::to_kvm(*registers))
            .map_err(|e| self.refused("set the registers", &e))
    }

    pub(crate) fn control(&self) -> Result<ControlRegisters, VcpuError> {
        let sregs = self
            .fd
            .get_sregs()
            .map_err(|e| self.refused("read the control registers", &e))?;
        Ok(registers::control(&sregs))
    }

    pub(crate) fn segments(&self) -> Result<SegmentRegisters, VcpuError> {
        let sregs = self.fd.get_sregs();
        let sregs = sregs.map_err(|e| self.refused("read the segment registers", &e))?;
        let kernel_gs_base = msr::read(&self.fd, msr::KERNEL_GS_BASE)
            .ok_or_else(|| self.refused("read KERNEL_GS_BASE", &"no such MSR"))?;
        Ok(registers::segments(&sregs, kernel_gs_base))
    }

    pub(crate) fn fpu(&self) -> Result<FpuRegisters, VcpuError> {
        let fpu = self.fd.get_fpu();
        let fpu = fpu.map_err(|e| self.refused("read the FPU's registers", &e))?;
        Ok(fpu::from_kvm(&fpu))
    }

    /// The MSR LSTAR.
    pub(crate) fn syscall_entry(&self) -> Result<u64, VcpuError> {
        msr::read(&self.fd, msr::LSTAR).ok_or_else(|| self.refused("read LSTAR", &"no such MSR"))
    }

    /// What the vCPU is debugged for, besides a step.
    pub(crate) fn debugging(&self) -> &Debugging {
        &self.debugging.wanted
    }

    /// Sets what the vCPU is debugged for; [`Debugging::check`] has passed it.
    pub(crate) fn set_debugging(&mut self, wanted: &Debugging) -> Result<(), VcpuError> {
        self.debugging.wanted.clone_from(wanted);
        if self.capabilities.sync_regs {
            // Nearly every answer to an int3 reads the system registers; answers to other exits don't.
            match wanted.breakpoints {
                true => self.fd.set_sync_valid_reg(SyncReg::SystemRegister),
                false => self.fd.clear_sync_valid_reg(SyncReg::SystemRegister),
            }
        }
        self.set_debug_around_step()
    }

    /// Lets a halted vCPU go on without an interrupt, as if one had come that changes nothing. A kernel halts again, as
    /// it does so in a loop.
    pub(super) fn wake(&self) -> Result<(), VcpuError> {
        let state = self.fd.get_mp_state();
        let mut state = state.map_err(|e| self.refused("read the state", &e))?;
        if state.mp_state != KVM_MP_STATE_HALTED {
            return Ok(());
        }
        state.mp_state = KVM_MP_STATE_RUNNABLE;
        let set = self.fd.set_mp_state(state);
        set.map_err(|e| self.refused("wake", &e))
    }

    /// Tells the guest that this vCPU has stood still, so that its watchdogs don't take it for hung. A guest that
    /// doesn't use KVM's clock can't be told (Documentation/virt/kvm/api.rst, `KVM_KVMCLOCK_CTRL`).
    pub(super) fn tell_of_stop(&self) {
        if let Err(error) = self.fd.kvmclock_ctrl() {
            tracing::debug!(
                "vCPU {} can't tell its guest that it stood still: {error}",
                self.id
            );
        }
    }

    /// Tells KVM what to debug for; `more` are `KVM_GUESTDBG_INJECT_*`. A step
    /// under way begins at RIP as it is now.
    pub(super) fn set_debug(&self, more: u32) -> Result<(), VcpuError> {
        self.fd
            .set_guest_debug(&self.debugging.request(self.capabilities.block_irq, more))
            .map_err(|e| self.refused("set up the debugging", &e))
    }

    /// As [`set_debug`](Self::set_debug), with a step under way left as it is.
    ///
    /// KVM sets the trap flag for the instruction at RIP, and only while RIP is
    /// there (arch/x86/kvm/x86.c, `singlestep_rip`). RIP may be in an exception
    /// handler by now, from which it comes back with the flag that it had.
    fn set_debug_around_step(&self) -> Result<(), VcpuError> {
        let Some(step) = self.debugging.step else {
            return self.set_debug(0);
        };
        let now = self.registers()?;
        if now.rip == step.start {
            return self.set_debug(0);
        }
        self.set_registers(&Registers {
            rip: step.start,
            ..now
        })?;
        self.set_debug(0)?;
        self.set_registers(&now)
    }

    #[cold]
    pub(super) fn refused(&self, what: &'static str, cause: &impl ToString) -> VcpuError {
        VcpuError {
            vcpu: self.id,
            what,
            cause: cause.to_string(),
        }
    }

    /// RIP at the end of `KVM_RUN`.
    pub(super) fn rip(&mut self) -> Result<u64, VcpuError> {
        match self.capabilities.sync_regs {
            true => Ok(self.fd.sync_regs_mut().regs.rip),
            false => Ok(self.registers()?.rip),
        }
    }

    /// The vCPU as it was at the end of `KVM_RUN`: for use before anything sets its registers.
    pub(super) fn context(&mut self) -> Result<VcpuContext<'_>, VcpuError> {
        if !self.capabilities.sync_regs {
            return self.context_now();
        }
        let shares_control = self.debugging.wanted.breakpoints;
        let mut context = self.context_of_page();
        context.shares_control = shares_control;
        context.shadow = Some(context.shared.events.interrupt.shadow);
        Ok(context)
    }

    /// The vCPU as it is: its registers may have been set since the end of `KVM_RUN`.
    pub(super) fn context_now(&mut self) -> Result<VcpuContext<'_>, VcpuError> {
        let regs = self.fd.get_regs();
        let regs = regs.map_err(|e| self.refused("read the registers", &e))?;
        self.fd.sync_regs_mut().regs = regs;
        Ok(self.context_of_page())
    }

    /// The vCPU with the registers that are in the page that KVM shares. They are used where KVM has put them: the
    /// page's part is half a KiB, of which little is needed.
    fn context_of_page(&mut self) -> VcpuContext<'_> {
        let shared = ptr::from_mut(self.fd.sync_regs_mut());
        VcpuContext {
            id: self.id,
            fd: &self.fd,
            // SAFETY: it is in the mapping that `fd` keeps for as long as it lives. KVM writes there in `KVM_RUN` only,
            // for which `fd` is borrowed mutably. The context borrows `fd`, and of the methods of a shared `fd` only
            // `sync_regs` looks there, which isn't called.
            shared: unsafe { &mut *shared },
            dirty: false,
            shares_control: false,
            control: None,
            tsc_offset: self.tsc_offset,
            shadow: None,
            step: self.debugging.step.map(|step| GuestVirtAddr(step.start)),
            pause: false,
        }
    }

    /// Gives KVM the registers that a context has changed; `plain`: the vCPU goes on with nothing injected.
    pub(super) fn hand_over(&mut self, plain: bool) -> Result<(), VcpuError> {
        // Registers that KVM takes over at KVM_RUN would throw away an exception
        // injected now; those of a plain resume need no system call.
        if plain && self.capabilities.sync_regs {
            self.fd.set_sync_dirty_reg(SyncReg::Register);
            return Ok(());
        }
        let regs = self.fd.sync_regs_mut().regs;
        let set = self.fd.set_regs(&regs);
        set.map_err(|e| self.refused("set the registers", &e))
    }
}
