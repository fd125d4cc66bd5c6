//! Control registers.
//!
//! Sources: Intel SDM vol. 3A, 2.2.1 (EFER) and 2.5 (control registers).

/// Bits of CR0.
pub mod cr0 {
    /// Protected mode.
    pub const PE: u64 = 1 << 0;
    /// Extension type; always set.
    pub const ET: u64 = 1 << 4;
    /// Numeric error: the FPU's errors are exceptions.
    pub const NE: u64 = 1 << 5;
    /// Write protection holds for the supervisor, too.
    pub const WP: u64 = 1 << 16;
    /// Paging.
    pub const PG: u64 = 1 << 31;
}

/// Bits of CR4.
pub mod cr4 {
    /// Physical address extension, which 64-bit paging needs.
    pub const PAE: u64 = 1 << 5;
    /// Five levels of page tables.
    pub const LA57: u64 = 1 << 12;
    /// The supervisor may not access users' pages, unless RFLAGS.AC is set.
    pub const SMAP: u64 = 1 << 21;
    /// Protection keys of users' pages.
    pub const PKE: u64 = 1 << 22;
    /// Protection keys of the supervisor's pages.
    pub const PKS: u64 = 1 << 24;
    /// Events don't go through the IDT (Intel FRED specification, 3.1).
    pub const FRED: u64 = 1 << 32;
}

/// Bits of the EFER MSR.
pub mod efer {
    /// Long mode is enabled.
    pub const LME: u64 = 1 << 8;
    /// Long mode is active.
    pub const LMA: u64 = 1 << 10;
    /// Page table entries can forbid execution.
    pub const NXE: u64 = 1 << 11;
}

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
