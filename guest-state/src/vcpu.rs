//! One vCPU at a trap.

use thiserror::Error;

use crate::addr::{GuestVirtAddr, Tsc, VcpuId};
use crate::x86_64::control::ControlRegisters;
use crate::x86_64::paging::PageTables;
use crate::x86_64::registers::Registers;

/// The monitor could not read or change a vCPU.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the monitor can't {what} of vCPU {vcpu}: {cause}")]
pub struct VcpuError {
    /// Which vCPU.
    pub vcpu: VcpuId,
    /// What was tried, such as `read the registers`.
    pub what: &'static str,
    /// The error that the monitor got.
    pub cause: String,
}

/// One vCPU, stopped outside guest mode for the time of one trap.
pub trait Vcpu {
    /// Its number.
    fn id(&self) -> VcpuId;

    /// Its registers as of the trap.
    fn registers(&self) -> &Registers;

    /// Its registers, to be changed before it resumes.
    fn registers_mut(&mut self) -> &mut Registers;

    /// Its control registers. The first call at a trap may cost a system call, so ask only where they
    /// are needed.
    ///
    /// # Errors
    /// The monitor can't read them.
    fn control(&mut self) -> Result<&ControlRegisters, VcpuError>;

    /// The guest's time stamp counter, in its ticks, as of the trap.
    fn tsc(&self) -> Tsc;

    /// Returns true if interrupts are held back until the next instruction is done.
    ///
    /// # Errors
    /// The monitor can't read it.
    fn interrupt_shadow(&self) -> Result<bool, VcpuError>;

    /// Sets or clears the interrupt shadow. While it is set, interrupts are held back until the next
    /// instruction is done, as after `sti` (SDM vol. 2, STI). Any other instruction clears it when it is
    /// done. Called for each emulated instruction, so it must cost nothing where nothing changes.
    ///
    /// # Errors
    /// The monitor can't change it.
    fn set_interrupt_shadow(&mut self, on: bool) -> Result<(), VcpuError>;

    /// Pauses the guest as soon as this trap is answered: no vCPU executes an instruction more than the
    /// answer needs.
    fn pause_guest(&mut self);

    /// RIP at the beginning of the step that is under way, or ends with this trap.
    fn step_under_way(&self) -> Option<GuestVirtAddr>;

    /// The page tables that it uses; `None` if they can't be read.
    fn page_tables(&mut self) -> Option<PageTables> {
        self.control().ok()?.page_tables().ok()
    }
}
