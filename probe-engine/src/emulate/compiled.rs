//! The emulated instructions, reduced to what carrying them out needs.

use guest_state::x86_64::supervisor::SupervisorMemory;

/// Size of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    Byte,
    Word,
    Double,
    Quad,
}

impl Width {
    /// Returns the width of a size in bytes.
    pub(crate) fn of_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            1 => Some(Self::Byte),
            2 => Some(Self::Word),
            4 => Some(Self::Double),
            8 => Some(Self::Quad),
            _ => None,
        }
    }

    /// Its size in bytes.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Word => 2,
            Self::Double => 4,
            Self::Quad => 8,
        }
    }

    /// Its size in bits.
    pub(crate) const fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }

    /// Ones in all its bits.
    pub(crate) const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// Its topmost bit.
    pub(crate) const fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    /// `value`'s low bits, extended with its sign to 64 bits.
    pub(crate) const fn sign_extend(self, value: u64) -> u64 {
        let unused = 64 - self.bits();
        (((value << unused) as i64) >> unused) as u64
    }
}

/// A general register or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reg {
    /// As instructions encode it.
    pub(crate) number: u8,
    /// True for AH, CH, DH and BH.
    pub(crate) high: bool,
}

/// Where the address of a memory operand starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Zero,
    Register(u8),
    /// The address of the following instruction.
    NextInstruction,
}

/// The base of an operand's segment: 0 in 64-bit mode, except for FS and GS (Intel SDM vol. 1, 3.3.7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentBase {
    Flat,
    Fs,
    Gs,
}

impl SegmentBase {
    /// The base on the vCPU whose memory this is a view of.
    pub(crate) fn value(self, view: &SupervisorMemory<'_>) -> u64 {
        match self {
            Self::Flat => 0,
            Self::Fs => view.fs_base(),
            Self::Gs => view.gs_base(),
        }
    }
}

/// A memory operand with 64-bit addressing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) base: Base,
    /// Register number and scale.
    pub(crate) index: Option<(u8, u8)>,
    pub(crate) displacement: u64,
    pub(crate) segment: SegmentBase,
}

/// What an instruction reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InsnOperand {
    Register(Reg),
    Memory(Address),
    /// Extended to 64 bits as the instruction does.
    Immediate(u64),
}

/// Two operands in, one out, all flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Adc,
    Sub,
    Sbb,
    And,
    Or,
    Xor,
    /// Sub without a result.
    Cmp,
    /// And without a result.
    Test,
}

/// One operand, in and out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unary {
    Inc,
    Dec,
    Neg,
    Not,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shift {
    Left,
    LogicalRight,
    ArithmeticRight,
}

/// When a branch that counts in RCX is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// `jrcxz`: doesn't count, only asks whether RCX is zero.
    IsZero,
    /// `loop`
    NotZero,
    /// `loope`
    NotZeroAndEqual,
    /// `loopne`
    NotZeroAndNotEqual,
}

/// Where a branch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BranchTo {
    /// This many bytes from the following instruction.
    Relative(u64),
    /// To the value of a 64-bit operand.
    Absolute(InsnOperand),
}

/// What an instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Nothing,
    Push(InsnOperand),
    Pop(InsnOperand),
    PushFlags,
    PopFlags,
    Leave,
    Move {
        width: Width,
        to: InsnOperand,
        from: InsnOperand,
    },
    Extend {
        to: Reg,
        width: Width,
        from: InsnOperand,
        from_width: Width,
        signed: bool,
    },
    LoadAddress {
        to: Reg,
        width: Width,
        address: Address,
    },
    Arithmetic {
        kind: Arithmetic,
        width: Width,
        to: InsnOperand,
        from: InsnOperand,
    },
    Unary {
        kind: Unary,
        width: Width,
        operand: InsnOperand,
    },
    Shift {
        kind: Shift,
        width: Width,
        operand: InsnOperand,
        count: InsnOperand,
    },
    /// `setcc`
    SetIf {
        condition: u8,
        to: InsnOperand,
    },
    /// `cmovcc`
    MoveIf {
        condition: u8,
        width: Width,
        to: Reg,
        from: InsnOperand,
    },
    Exchange {
        width: Width,
        a: Reg,
        b: Reg,
    },
    /// `cbw`, `cwde`, `cdqe`: RAX from its own lower half.
    ExtendA {
        width: Width,
    },
    /// `cwd`, `cdq`, `cqo`: RDX from the sign of RAX.
    SignOfA {
        width: Width,
    },
    Jump(BranchTo),
    Call(BranchTo),
    JumpIf {
        condition: u8,
        by: u64,
    },
    JumpCounting {
        count: Count,
        by: u64,
    },
    /// Drops this many bytes of arguments.
    Return {
        drop: u16,
    },
    /// `clc`, `stc`, `cld`, `std`, `clac`, `stac`, `cli`: one flag.
    Flag {
        mask: u64,
        set: bool,
    },
    /// `cmc`
    ComplementCarry,
    /// `sti`
    EnableInterrupts,
    Halt,
}

/// An instruction ready to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compiled {
    /// Its length in bytes.
    pub(crate) len: u8,
    pub(crate) operation: Operation,
}
