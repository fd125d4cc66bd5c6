//! Registers that an interrupt, an exception or a system call has put on the stack.
//!
//! Source: `struct pt_regs` in `arch/x86/include/asm/ptrace.h`.

use guest_state::{GuestVirtAddr, Registers};

use super::entry::Register;

/// Offset of RBP in bytes.
pub(super) const RBP: u64 = 32;
/// Offset of RIP. What the processor itself pushes begins here (`IRET_FRAME_OFFSET`).
const RIP: u64 = 128;
/// Offset of CS.
const CS: u64 = 136;
/// Offset of RSP.
const RSP: u64 = 152;
/// The bits of CS that say in which ring the code ran (Intel SDM vol. 3, 5.5 "Privilege levels").
const RING: u64 = 3;

/// Where all registers of interrupted code are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whole {
    /// They are known.
    Known(Registers),
    /// In a whole `struct pt_regs` here.
    At(GuestVirtAddr),
}

/// What is known of the registers in the code that is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) enum Interrupted {
    /// Only RIP, RSP and RBP are known: the code has called a function.
    No,
    /// All registers are known.
    Whole(Whole),
    /// The registers are still those of the code that interrupted it right away, if they are known there.
    Partly(Option<Whole>),
    /// Only RBP is known, in the `struct pt_regs` here: inserted code has used the other registers.
    Inserted(GuestVirtAddr),
}

/// The code that an interrupt came into.
pub(super) struct Came {
    pub(super) rip: GuestVirtAddr,
    pub(super) rsp: GuestVirtAddr,
    pub(super) user: bool,
}

impl Came {
    /// Reads what the processor has pushed into the `struct pt_regs` at an address.
    pub(super) fn read(
        regs: GuestVirtAddr,
        memory: &mut dyn FnMut(GuestVirtAddr) -> Option<u64>,
    ) -> Option<Self> {
        let mut read = |offset| memory(regs.wrapping_add(offset));
        Some(Self {
            rip: GuestVirtAddr(read(RIP)?),
            rsp: GuestVirtAddr(read(RSP)?),
            user: read(CS)? & RING != 0,
        })
    }
}

/// Returns where a `struct pt_regs` would begin of which only the last part is there.
pub(super) fn of_partial(pushed: GuestVirtAddr) -> GuestVirtAddr {
    pushed.wrapping_add(RIP.wrapping_neg())
}

impl Interrupted {
    /// Returns the state of the code that code in this state has interrupted, when only the processor has put anything
    /// on the stack.
    pub(super) fn partly(self) -> Self {
        Self::Partly(match self {
            Self::No | Self::Inserted(_) => None,
            Self::Whole(whole) => Some(whole),
            Self::Partly(whole) => whole,
        })
    }

    fn whole(self) -> Option<Whole> {
        match self {
            Self::No | Self::Inserted(_) => None,
            Self::Whole(whole) => Some(whole),
            Self::Partly(whole) => whole,
        }
    }

    /// Returns the value of RBP; `Some(None)` if it isn't known from here, `None` if it can't be read.
    pub(super) fn rbp(
        self,
        memory: &mut dyn FnMut(GuestVirtAddr) -> Option<u64>,
    ) -> Option<Option<u64>> {
        let regs = match (self, self.whole()) {
            (Self::Inserted(regs), _) | (_, Some(Whole::At(regs))) => regs,
            (_, Some(Whole::Known(registers))) => return Some(Some(registers.rbp)),
            (_, None) => return Some(None),
        };
        memory(regs.wrapping_add(RBP)).map(Some)
    }

    /// Returns the value of a register; `None` where it isn't known.
    pub(super) fn register(
        self,
        register: Register,
        memory: &mut dyn FnMut(GuestVirtAddr) -> Option<u64>,
    ) -> Option<u64> {
        match self.whole()? {
            Whole::Known(registers) => Some(match register {
                Register::Rax => registers.rax,
                Register::Rdx => registers.rdx,
                Register::Rdi => registers.rdi,
                Register::R10 => registers.r10,
                Register::R13 => registers.r13,
            }),
            Whole::At(regs) => memory(regs.wrapping_add(match register {
                Register::R13 => 16,
                Register::R10 => 56,
                Register::Rax => 80,
                Register::Rdx => 96,
                Register::Rdi => 112,
            })),
        }
    }
}
