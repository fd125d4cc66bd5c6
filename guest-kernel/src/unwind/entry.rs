//! What one ORC entry says, the same for all versions of its form.

/// How to find the caller of the code that an entry covers (`struct orc_entry`,
/// `arch/x86/include/asm/orc_types.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OrcEntry {
    /// What the caller's stack pointer is computed from.
    pub sp: Base,
    /// What is added to it, in bytes.
    pub sp_offset: i16,
    /// What leads to the caller's RBP. [`Base::Undefined`] where it is still in RBP.
    pub bp: Base,
    /// What is added to it, in bytes.
    pub bp_offset: i16,
    /// What lies on the stack.
    pub frame: FrameType,
    /// The code was interrupted at the address that the frame holds: it is no return address.
    pub signal: bool,
}

/// The start of a computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Base {
    /// Nothing.
    Undefined,
    /// The stack pointer that the caller had, found before.
    PreviousSp,
    /// RSP.
    Sp,
    /// RBP.
    Bp,
    /// What the stack holds at RSP. The offset is added behind the load.
    SpIndirect,
    /// What the stack holds at RBP and the offset.
    BpIndirect,
    /// A register, whose value is known only in an interrupted function. No offset is added.
    Register(Register),
    /// A number that no known kernel uses.
    Unknown,
}

/// Registers that the compiler or assembly keeps a stack pointer in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the register of that name")]
pub enum Register {
    Rax,
    Rdx,
    Rdi,
    R10,
    R13,
}

/// What lies on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameType {
    /// It isn't known.
    Undefined,
    /// Nothing called this code.
    EndOfStack,
    /// A return address, below the caller's stack pointer.
    Call,
    /// A whole `struct pt_regs` of what was interrupted.
    Registers,
    /// What the processor pushes on an interrupt: the last five words of a `struct pt_regs`.
    PartialRegisters,
    /// A number that no known kernel uses.
    Unknown,
}

impl OrcEntry {
    /// A function at its first instruction: the return address is at RSP.
    pub const CALLED: Self = Self {
        sp: Base::Sp,
        sp_offset: 8,
        bp: Base::Undefined,
        bp_offset: 0,
        frame: FrameType::Call,
        signal: false,
    };

    /// A function that keeps a frame pointer, behind its prologue. The kernel assumes it of code that has
    /// no entries, such as compiled BPF programs (`orc_fp_entry` in `arch/x86/kernel/unwind_orc.c`).
    pub const FRAME_POINTER: Self = Self {
        sp: Base::Bp,
        sp_offset: 16,
        bp: Base::PreviousSp,
        bp_offset: -16,
        frame: FrameType::Call,
        signal: false,
    };
}
