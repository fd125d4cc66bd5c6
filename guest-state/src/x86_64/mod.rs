//! The parts that are specific to x86-64: registers, page tables, what a supervisor may access, numbers
//! of the architecture.

pub mod control;
pub mod flags;
pub mod idt;
mod opcode;
pub mod page_entry;
pub mod paging;
pub mod registers;
pub mod supervisor;

pub use opcode::{INT3, JMP_REL32, JMP_REL32_LEN, NOP, NOP5, jmp_rel32};

/// Bytes of the smallest page.
pub const PAGE_SIZE: u64 = 4096;

/// Bytes of the longest instruction (SDM vol. 2, 2.3.11).
pub const MAX_INSTRUCTION_LEN: usize = 15;

/// Address breakpoints that a processor has, DR0 to DR3 (SDM vol. 3, 17.2.1).
pub const DEBUG_REGISTERS: usize = 4;

/// Vectors of exceptions (SDM vol. 3, table 6-1).
pub mod vector {
    /// #DE, a division's quotient doesn't fit.
    pub const DIVIDE_ERROR: u8 = 0;
    /// #DB, a debug exception.
    pub const DEBUG: u8 = 1;
    /// #BP, an int3.
    pub const BREAKPOINT: u8 = 3;
    /// #UD, no instruction.
    pub const INVALID_OPCODE: u8 = 6;
    /// #GP.
    pub const GENERAL_PROTECTION: u8 = 13;
    /// #PF.
    pub const PAGE_FAULT: u8 = 14;

    /// Returns true if the exception pushes an error code: #DF, #TS, #NP, #SS, #GP, #PF, #AC, #CP, #VC,
    /// #SX (SDM vol. 3A, table 6-1; AMD64 APM vol. 2, table 8-1).
    pub const fn has_error_code(vector: u8) -> bool {
        matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
    }
}
