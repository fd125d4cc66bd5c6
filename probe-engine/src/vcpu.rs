//! A stopped virtual processor, as the engine sees it.

use crate::addr::{Tsc, VcpuId};
use crate::paging::{PageTables, PagingModeError};
use crate::probe::RegisterSet;

/// The general registers, the instruction pointer and the flags.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the register of that name")]
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

impl Registers {
    /// These registers and RIP; the others are 0.
    pub(crate) fn only(&self, wanted: RegisterSet) -> Self {
        if wanted == RegisterSet::ALL {
            return *self;
        }
        let mut shown = Self {
            rip: self.rip,
            ..Self::default()
        };
        for number in wanted.numbers() {
            match number {
                RegisterSet::FLAGS => shown.rflags = self.rflags,
                number => *shown.by_number_mut(number) = self.by_number(number),
            }
        }
        shown
    }

    /// The register that instruction encodings call `number` (0 is RAX, 4 is
    /// RSP, 15 is R15; only the low four bits count).
    ///
    /// Source: Intel SDM vol. 2, table 2-4.
    pub(crate) fn by_number(&self, number: u8) -> u64 {
        match number & 15 {
            0 => self.rax,
            1 => self.rcx,
            2 => self.rdx,
            3 => self.rbx,
            4 => self.rsp,
            5 => self.rbp,
            6 => self.rsi,
            7 => self.rdi,
            8 => self.r8,
            9 => self.r9,
            10 => self.r10,
            11 => self.r11,
            12 => self.r12,
            13 => self.r13,
            14 => self.r14,
            _ => self.r15,
        }
    }

    /// The same register, to write.
    pub(crate) fn by_number_mut(&mut self, number: u8) -> &mut u64 {
        match number & 15 {
            0 => &mut self.rax,
            1 => &mut self.rcx,
            2 => &mut self.rdx,
            3 => &mut self.rbx,
            4 => &mut self.rsp,
            5 => &mut self.rbp,
            6 => &mut self.rsi,
            7 => &mut self.rdi,
            8 => &mut self.r8,
            9 => &mut self.r9,
            10 => &mut self.r10,
            11 => &mut self.r11,
            12 => &mut self.r12,
            13 => &mut self.r13,
            14 => &mut self.r14,
            _ => &mut self.r15,
        }
    }
}

/// What decides how the vCPU reads memory and what it may do.
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
    /// Base of the interrupt descriptor table.
    pub idt_base: u64,
    /// Its last byte, from the base.
    pub idt_limit: u16,
    /// Current privilege level, 0 to 3.
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

/// The monitor could not read or change a vCPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot access the {what} of vCPU {vcpu}: {reason}; the VM has to be stopped")]
pub struct VcpuError {
    /// Which vCPU.
    pub vcpu: VcpuId,
    /// Which part of its state.
    pub what: &'static str,
    /// What the monitor was told.
    pub reason: String,
}

/// One vCPU, stopped outside guest mode.
pub trait Vcpu {
    /// Its number.
    fn id(&self) -> VcpuId;

    /// Its registers as of the trap.
    fn registers(&self) -> &Registers;

    /// Its registers, to be changed before it goes on.
    fn registers_mut(&mut self) -> &mut Registers;

    /// Its control registers. May cost a system call, so the engine asks only
    /// where it must.
    ///
    /// # Errors
    /// When the monitor can't read them.
    fn control(&mut self) -> Result<ControlRegisters, VcpuError>;

    /// The guest's time stamp counter, in its ticks, as of the trap.
    fn tsc(&self) -> Tsc;

    /// Holds interrupts back until the next instruction is done, as STI does, or no
    /// longer, as any other instruction that is done. Called for each emulated
    /// instruction, so it must cost nothing where nothing changes.
    ///
    /// # Errors
    /// When the monitor can't change it.
    fn set_interrupt_shadow(&mut self, on: bool) -> Result<(), VcpuError>;
}

/// The page tables that a vCPU uses, if they can be told.
pub(crate) fn page_tables(vcpu: &mut dyn Vcpu) -> Option<PageTables> {
    vcpu.control().ok()?.page_tables().ok()
}

/// A vCPU for tests, with no guest.
pub mod testing {
    use super::{ControlRegisters, Registers, Tsc, Vcpu, VcpuError, VcpuId};

    /// A vCPU that is only its state. As it begins, it runs 64-bit code at
    /// privilege level 0 without paging, which no real one can: addresses are
    /// their own translation.
    #[derive(Debug, Clone)]
    #[expect(
        missing_docs,
        reason = "each field is the answer of the method of that name"
    )]
    pub struct TestVcpu {
        pub id: VcpuId,
        pub registers: Registers,
        pub control: ControlRegisters,
        pub tsc: Tsc,
        /// Whether interrupts are held back for one instruction.
        pub interrupt_shadow: bool,
    }

    impl Default for TestVcpu {
        fn default() -> Self {
            Self {
                id: VcpuId(0),
                registers: Registers {
                    rflags: 2,
                    ..Registers::default()
                },
                control: ControlRegisters {
                    code64: true,
                    ..ControlRegisters::default()
                },
                tsc: Tsc(0),
                interrupt_shadow: false,
            }
        }
    }

    impl Vcpu for TestVcpu {
        fn id(&self) -> VcpuId {
            self.id
        }

        fn registers(&self) -> &Registers {
            &self.registers
        }

        fn registers_mut(&mut self) -> &mut Registers {
            &mut self.registers
        }

        fn control(&mut self) -> Result<ControlRegisters, VcpuError> {
            Ok(self.control)
        }

        fn tsc(&self) -> Tsc {
            self.tsc
        }

        fn set_interrupt_shadow(&mut self, on: bool) -> Result<(), VcpuError> {
            self.interrupt_shadow = on;
            Ok(())
        }
    }
}
