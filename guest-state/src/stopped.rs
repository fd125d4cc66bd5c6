//! A stopped guest.

use crate::addr::{GuestPhysAddr, GuestVirtAddr, PhysRange, VcpuId};
use crate::debugging::{Debugging, DebuggingError};
use crate::memory::GuestMemory;
use crate::vcpu::VcpuError;
use crate::x86_64::control::ControlRegisters;
use crate::x86_64::registers::Registers;

/// A guest whose vCPUs are all out of guest mode, and stay so while it is borrowed.
pub trait StoppedGuest {
    /// Its memory.
    fn memory(&self) -> &dyn GuestMemory;

    /// Its RAM.
    fn ram(&self) -> Vec<PhysRange>;

    /// Returns true if its page tables may map 1 GiB by one entry (CPUID leaf 0x80000001, EDX bit 26; SDM vol. 3,
    /// 4.1.4).
    fn has_gigabyte_pages(&self) -> bool;

    /// The number of its vCPUs.
    fn vcpus(&self) -> u32;

    /// General registers of a vCPU.
    ///
    /// # Errors
    /// There is no such vCPU, or the monitor can't read them.
    fn registers(&self, vcpu: VcpuId) -> Result<Registers, VcpuError>;

    /// Sets the general registers of a vCPU. A step that has yet to execute its instruction executes the
    /// one that RIP is at then.
    ///
    /// # Errors
    /// There is no such vCPU, or the monitor can't change them.
    fn set_registers(&self, vcpu: VcpuId, registers: &Registers) -> Result<(), VcpuError>;

    /// Control registers of a vCPU.
    ///
    /// # Errors
    /// There is no such vCPU, or the monitor can't read them.
    fn control(&self, vcpu: VcpuId) -> Result<ControlRegisters, VcpuError>;

    /// Debugs all vCPUs, also those that the guest starts later, for this and nothing else. A KVM that emulates
    /// kernel-mode code doesn't see that code's accesses to watched data; the doctor's report has a line on it.
    ///
    /// # Errors
    /// See [`DebuggingError`]; all vCPUs are debugged for what they were before.
    fn set_debugging(&self, debugging: &Debugging) -> Result<(), DebuggingError>;
}

/// A part of the kernel image that is contiguous in both address spaces, as a `PT_LOAD` segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where the kernel links it (`p_vaddr`).
    pub virt: GuestVirtAddr,
    /// Where it is in physical memory (`p_paddr`).
    pub phys: GuestPhysAddr,
    /// Its length in memory in bytes (`p_memsz`).
    pub len: u64,
}

/// Guest physical memory that is in neither the guest's memory map (e820) nor its ACPI tables. Code that
/// knows its address can map it into the guest's virtual address space. It is zero at first and takes host
/// memory only where it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaMemory {
    /// 32 pages for page tables, below 1 MiB, which a kernel maps but doesn't use.
    pub tables: GuestPhysAddr,
    /// What the guest can read and execute; its writes there have no effect.
    pub code: PhysRange,
    /// What the guest can read and write.
    pub data: PhysRange,
    /// The number of vCPUs that the data is laid out for.
    pub vcpus: u32,
}
