//! A stopped vCPU as a trap handler sees it.

use guest_state::x86_64::supervisor::SupervisorMemory;
use guest_state::x86_64::vector;
use guest_state::{ControlRegisters, GuestVirtAddr, Registers, Tsc, Vcpu, VcpuError, VcpuId};
use kvm_bindings::{KVM_MP_STATE_HALTED, kvm_mp_state, kvm_sregs, kvm_sync_regs};
use kvm_ioctls::VcpuFd;

use super::{
    clock::host_tsc,
    deliver,
    events::{self, PendingEvents},
    exit::INT3_LEN,
    msr, registers,
};
use crate::ram::GuestRam;

/// B0 to B3 of DR6, and all that an exception sets: those, BD, BS and BT.
const DR6_MATCHES: u64 = 0xf;
const DR6_SET: u64 = DR6_MATCHES | 1 << 13 | 1 << 14 | 1 << 15;

/// A vCPU out of guest mode, for the time of one trap.
pub struct VcpuContext<'a> {
    pub(crate) id: VcpuId,
    pub(crate) fd: &'a VcpuFd,
    /// Where KVM puts registers. The general ones are there, and are changed there.
    pub(crate) shared: &'a mut kvm_sync_regs,
    /// Set when the registers have been changed.
    pub(crate) dirty: bool,
    /// True if KVM has put the system registers there, too.
    pub(crate) shares_control: bool,
    /// The control registers, once they have been read.
    pub(crate) control: Option<ControlRegisters>,
    pub(crate) tsc_offset: Option<u64>,
    /// `KVM_X86_SHADOW_INT_*`, where KVM has told it.
    pub(crate) shadow: Option<u8>,
    pub(crate) step: Option<GuestVirtAddr>,
    /// Set when the guest is to be paused.
    pub(crate) pause: bool,
}

impl Vcpu for VcpuContext<'_> {
    fn id(&self) -> VcpuId {
        self.id
    }

    fn registers(&self) -> &Registers {
        registers::in_kvm(&self.shared.regs)
    }

    fn registers_mut(&mut self) -> &mut Registers {
        self.dirty = true;
        registers::in_kvm_mut(&mut self.shared.regs)
    }

    fn control(&mut self) -> Result<&ControlRegisters, VcpuError> {
        match self.control {
            Some(ref known) => Ok(known),
            None => {
                let control = match self.shares_control {
                    true => registers::control(&self.shared.sregs),
                    false => self.read_control()?,
                };
                Ok(self.control.insert(control))
            }
        }
    }

    /// The guest's counter now. Where the host's own counter is unstable and KVM must be asked, it is that
    /// of the moment when the vCPU left guest mode.
    fn tsc(&self) -> Tsc {
        Tsc(match self.tsc_offset {
            Some(offset) => host_tsc().wrapping_add(offset),
            None => msr::guest_tsc(self.fd).unwrap_or_else(host_tsc),
        })
    }

    fn interrupt_shadow(&self) -> Result<bool, VcpuError> {
        let shadow = match self.shadow {
            Some(shadow) => shadow,
            None => self.events()?.shadow(),
        };
        Ok(shadow != events::shadow(false))
    }

    fn set_interrupt_shadow(&mut self, on: bool) -> Result<(), VcpuError> {
        let shadow = events::shadow(on);
        match self.shadow == Some(shadow) {
            true => Ok(()),
            false => self.change_shadow(shadow),
        }
    }

    fn pause_guest(&mut self) {
        self.pause = true;
    }

    fn step_under_way(&self) -> Option<GuestVirtAddr> {
        self.step
    }
}

impl VcpuContext<'_> {
    /// Injects a page fault at RIP.
    pub(crate) fn inject_page_fault(
        &mut self,
        address: GuestVirtAddr,
        error_code: u32,
    ) -> Result<(), VcpuError> {
        let mut sregs = self.sregs()?;
        sregs.cr2 = address.0;
        self.fd
            .set_sregs(&sregs)
            .map_err(|e| self.refused("set the control registers", &e))?;
        let mut events = self.events()?;
        events.inject(vector::PAGE_FAULT, Some(error_code));
        self.set_events(&events)
    }

    /// Delivers the breakpoint exception of the guest's own int3 at RIP. Returns false
    /// if that must be left to KVM.
    pub(crate) fn deliver_breakpoint(&mut self, ram: &GuestRam) -> Result<bool, VcpuError> {
        let mut sregs = self.sregs()?;
        let memory = SupervisorMemory::new(ram, &registers::control(&sregs));
        let after = memory
            .ok()
            .and_then(|memory| deliver::breakpoint(self.registers(), &sregs, &memory));
        let Some(after) = after else {
            return Ok(false);
        };
        // The int3 is done. Left as it is with interrupts off, a shadow is a state that a
        // processor doesn't enter the guest with (SDM vol. 3, 26.3.1.5).
        self.set_interrupt_shadow(false)?;
        if let Some((code, stack)) = after.segments {
            (sregs.cs, sregs.ss) = (code, stack);
            self.fd
                .set_sregs(&sregs)
                .map_err(|e| self.refused("set the segments", &e))?;
        }
        *self.registers_mut() = after.registers;
        Ok(true)
    }

    /// Injects a breakpoint exception with RIP past the int3, for a KVM that delivers injected exceptions
    /// as they are.
    pub(crate) fn inject_breakpoint_after(&mut self) -> Result<(), VcpuError> {
        self.registers_mut().rip += INT3_LEN;
        let mut events = self.events()?;
        events.inject(vector::BREAKPOINT, None);
        self.set_events(&events)
    }

    /// Adds to the guest's DR6 what a debug exception of its own left there: the
    /// processor sets bits and clears only B0 to B3 (SDM vol. 3, 17.2.3).
    pub(crate) fn add_to_dr6(&mut self, dr6: u64) -> Result<(), VcpuError> {
        let mut registers = self
            .fd
            .get_debug_regs()
            .map_err(|e| self.refused("read the debug registers", &e))?;
        registers.dr6 = registers.dr6 & !DR6_MATCHES | dr6 & DR6_SET;
        self.fd
            .set_debug_regs(&registers)
            .map_err(|e| self.refused("set the debug registers", &e))
    }

    /// Makes the vCPU wait for an interrupt, as after `hlt`.
    pub(crate) fn halt(&mut self) -> Result<(), VcpuError> {
        // An interrupt shadow, as after `sti; hlt`, ends with the instruction.
        self.set_interrupt_shadow(false)?;
        self.fd
            .set_mp_state(kvm_mp_state {
                mp_state: KVM_MP_STATE_HALTED,
            })
            .map_err(|e| self.refused("halt", &e))
    }

    #[cold]
    fn change_shadow(&mut self, shadow: u8) -> Result<(), VcpuError> {
        let mut events = self.events()?;
        events.set_shadow(shadow);
        self.set_events(&events)?;
        self.shadow = Some(shadow);
        Ok(())
    }

    #[cold]
    fn read_control(&self) -> Result<ControlRegisters, VcpuError> {
        Ok(registers::control(&self.sregs()?))
    }

    fn sregs(&self) -> Result<kvm_sregs, VcpuError> {
        self.fd
            .get_sregs()
            .map_err(|e| self.refused("read the control registers", &e))
    }

    fn events(&self) -> Result<PendingEvents, VcpuError> {
        PendingEvents::read(self.fd).map_err(|e| self.refused("read the pending events", &e))
    }

    fn set_events(&self, events: &PendingEvents) -> Result<(), VcpuError> {
        events
            .write(self.fd)
            .map_err(|e| self.refused("set the pending events", &e))
    }

    #[cold]
    fn refused(&self, what: &'static str, cause: &impl ToString) -> VcpuError {
        VcpuError {
            vcpu: self.id,
            what,
            cause: cause.to_string(),
        }
    }
}
