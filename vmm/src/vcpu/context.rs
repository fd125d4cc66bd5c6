//! A stopped vCPU as a trap handler sees it.

use kvm_bindings::{KVM_MP_STATE_HALTED, kvm_mp_state, kvm_regs, kvm_sregs};
use kvm_ioctls::VcpuFd;
use thiserror::Error;

use crate::{
    ram::GuestRam,
    trap::INT3_LEN,
    vcpu::{
        deliver,
        events::{self, PendingEvents},
        msr,
        paging::KernelMemory,
    },
};

/// Vector of the breakpoint exception.
const BREAKPOINT: u8 = 3;
/// Vector of the page fault exception.
const PAGE_FAULT: u8 = 14;
/// B0 to B3 of DR6, and all that an exception sets: those, BD, BS and BT.
const DR6_MATCHES: u64 = 0xf;
const DR6_SET: u64 = DR6_MATCHES | 1 << 13 | 1 << 14 | 1 << 15;
/// RPL bits of a segment selector.
const RPL: u16 = 3;

/// An operation on a vCPU that KVM refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("KVM refused to {what} of vCPU {vcpu}: {cause}")]
pub struct VcpuAccessError {
    /// The vCPU.
    pub vcpu: u32,
    /// What was tried.
    pub what: &'static str,
    /// The host's own words.
    pub cause: String,
}

/// Control registers and segment bases that matter for addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlRegisters {
    /// CR0.
    pub cr0: u64,
    /// CR2, the address of the last page fault.
    pub cr2: u64,
    /// CR3, the root of the page tables.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// The extended feature enable register.
    pub efer: u64,
    /// Base of the FS segment.
    pub fs_base: u64,
    /// Base of the GS segment.
    pub gs_base: u64,
    /// Linear address of the interrupt descriptor table.
    pub idt_base: u64,
    /// Its last byte's offset.
    pub idt_limit: u16,
    /// Current privilege level, 0 for the kernel.
    pub cpl: u8,
    /// Whether the code segment is a 64-bit one.
    pub code64: bool,
}

impl From<&kvm_sregs> for ControlRegisters {
    fn from(s: &kvm_sregs) -> Self {
        Self {
            cr0: s.cr0,
            cr2: s.cr2,
            cr3: s.cr3,
            cr4: s.cr4,
            efer: s.efer,
            fs_base: s.fs.base,
            gs_base: s.gs.base,
            idt_base: s.idt.base,
            idt_limit: s.idt.limit,
            // The privilege level is that of SS (SDM vol. 3, 5.5); its RPL tells it
            // on every KVM.
            cpl: (s.ss.selector & RPL) as u8,
            code64: s.cs.l == 1,
        }
    }
}

/// A vCPU out of guest mode, for the time of one trap.
pub struct VcpuContext<'a> {
    pub(super) index: u32,
    pub(super) fd: &'a VcpuFd,
    pub(super) registers: kvm_regs,
    pub(super) dirty: bool,
    pub(super) tsc_offset: Option<u64>,
    /// `KVM_X86_SHADOW_INT_*`, where KVM has told it.
    pub(super) shadow: Option<u8>,
    pub(super) step: Option<u64>,
}

impl VcpuContext<'_> {
    /// Number of this vCPU, from 0.
    pub fn id(&self) -> u32 {
        self.index
    }

    /// Its general registers.
    pub fn registers(&self) -> &kvm_regs {
        &self.registers
    }

    /// Its general registers to change.
    pub fn registers_mut(&mut self) -> &mut kvm_regs {
        self.dirty = true;
        &mut self.registers
    }

    /// RIP where the step began that is under way, or ends with this trap.
    pub fn step_under_way(&self) -> Option<u64> {
        self.step
    }

    /// Its control registers; one system call.
    ///
    /// # Errors
    /// When KVM refuses.
    pub fn control(&self) -> Result<ControlRegisters, VcpuAccessError> {
        Ok((&self.sregs()?).into())
    }

    /// The guest's time stamp counter: now, or, where the host's own is unstable
    /// and KVM must be asked, when the vCPU left guest mode.
    pub fn tsc(&self) -> u64 {
        // SAFETY: every x86-64 CPU has rdtsc, and Linux doesn't forbid it to processes
        // (PR_SET_TSC) unless asked to.
        let host = || unsafe { core::arch::x86_64::_rdtsc() };
        match self.tsc_offset {
            Some(offset) => host().wrapping_add(offset),
            None => msr::guest_tsc(self.fd).unwrap_or_else(host),
        }
    }

    /// Holds interrupts back until the next instruction is done, as `sti` does
    /// (SDM vol. 2, STI), or no longer, as after any other instruction.
    ///
    /// # Errors
    /// When KVM refuses.
    pub fn set_interrupt_shadow(&mut self, on: bool) -> Result<(), VcpuAccessError> {
        let shadow = events::shadow(on);
        if self.shadow == Some(shadow) {
            return Ok(());
        }
        let mut events = self.events()?;
        events.set_shadow(shadow);
        self.set_events(&events)?;
        self.shadow = Some(shadow);
        Ok(())
    }

    /// Whether interrupts are held back until the next instruction is done.
    ///
    /// # Errors
    /// When KVM refuses.
    pub fn interrupt_shadow(&self) -> Result<bool, VcpuAccessError> {
        let shadow = match self.shadow {
            Some(shadow) => shadow,
            None => self.events()?.shadow(),
        };
        Ok(shadow != events::shadow(false))
    }

    /// Injects a page fault at RIP.
    pub(super) fn inject_page_fault(
        &mut self,
        address: u64,
        error_code: u32,
    ) -> Result<(), VcpuAccessError> {
        let mut sregs = self.sregs()?;
        sregs.cr2 = address;
        self.fd
            .set_sregs(&sregs)
            .map_err(|e| self.refused("set the control registers", &e))?;
        let mut events = self.events()?;
        events.inject(PAGE_FAULT, Some(error_code));
        self.set_events(&events)
    }

    /// Delivers the breakpoint exception of the guest's own int3 at RIP. False
    /// when that must be left to KVM.
    pub(super) fn deliver_breakpoint(&mut self, ram: &GuestRam) -> Result<bool, VcpuAccessError> {
        let mut sregs = self.sregs()?;
        let memory = KernelMemory::new(ram, &sregs);
        let Some(after) = deliver::breakpoint(&self.registers, &sregs, &memory) else {
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
        *self.registers_mut() = after.regs;
        Ok(true)
    }

    /// Injects a breakpoint exception as a KVM wants it that delivers injected
    /// exceptions as they are: RIP past the int3.
    pub(super) fn inject_breakpoint_after(&mut self) -> Result<(), VcpuAccessError> {
        self.registers_mut().rip += INT3_LEN;
        let mut events = self.events()?;
        events.inject(BREAKPOINT, None);
        self.set_events(&events)
    }

    /// Adds to the guest's DR6 what a debug exception of its own left there: the
    /// processor sets bits and clears only B0 to B3 (SDM vol. 3, 17.2.3).
    pub(super) fn add_to_dr6(&mut self, dr6: u64) -> Result<(), VcpuAccessError> {
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
    pub(super) fn halt(&mut self) -> Result<(), VcpuAccessError> {
        // An interrupt shadow, as after `sti; hlt`, ends with the instruction.
        self.set_interrupt_shadow(false)?;
        self.fd
            .set_mp_state(kvm_mp_state {
                mp_state: KVM_MP_STATE_HALTED,
            })
            .map_err(|e| self.refused("halt", &e))
    }

    fn sregs(&self) -> Result<kvm_sregs, VcpuAccessError> {
        self.fd
            .get_sregs()
            .map_err(|e| self.refused("read the control registers", &e))
    }

    fn events(&self) -> Result<PendingEvents, VcpuAccessError> {
        PendingEvents::read(self.fd).map_err(|e| self.refused("read the pending events", &e))
    }

    fn set_events(&self, events: &PendingEvents) -> Result<(), VcpuAccessError> {
        events
            .write(self.fd)
            .map_err(|e| self.refused("set the pending events", &e))
    }

    fn refused(&self, what: &'static str, cause: &impl ToString) -> VcpuAccessError {
        VcpuAccessError {
            vcpu: self.index,
            what,
            cause: cause.to_string(),
        }
    }
}
