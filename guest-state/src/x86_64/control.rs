//! Control registers.

use super::paging::{PageTables, PagingModeError};

/// What decides how a vCPU reads memory and what it may do.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ControlRegisters {
    /// CR0: paging and write protection.
    pub cr0: u64,
    /// CR2: the address of the last page fault.
    pub cr2: u64,
    /// CR3: the root of the page tables.
    pub cr3: u64,
    /// CR4: paging extensions and SMAP.
    pub cr4: u64,
    /// The EFER MSR: long mode.
    pub efer: u64,
    /// Base of the FS segment.
    pub fs_base: u64,
    /// Base of the GS segment.
    pub gs_base: u64,
    /// Linear address of the interrupt descriptor table.
    pub idt_base: u64,
    /// Its last byte, from the base.
    pub idt_limit: u16,
    /// Current privilege level, 0 for the kernel.
    pub cpl: u8,
    /// True when CS is a 64-bit code segment (CS.L).
    pub code64: bool,
}

impl ControlRegisters {
    /// The page tables that the vCPU uses.
    ///
    /// # Errors
    /// See [`PageTables::from_registers`].
    pub fn page_tables(&self) -> Result<PageTables, PagingModeError> {
        PageTables::from_registers(self.cr0, self.cr3, self.cr4, self.efer)
    }
}
