//! Saved registers: what a part of a detour puts aside on the stack, so that it may use registers.
//!
//! Kernel code has no red zone below RSP (`-mno-red-zone`, `arch/x86/Makefile`).

use iced_x86::code_asm::{AsmRegister64, CodeAssembler, byte_ptr, qword_ptr, registers as reg};
use iced_x86::{IcedError, MemoryOperand, Register};

use super::live::Dead;

/// Numbers of registers in instruction encodings (SDM vol. 2, table 2-4).
pub(super) const RAX: u8 = 0;
/// See [`RAX`].
pub(super) const RDX: u8 = 2;
/// See [`RAX`].
pub(super) const RSP: u8 = 4;

/// How many general registers there are.
const GENERAL: u8 = 16;

/// Bytes of what is pushed.
const WORD: i32 = 8;

/// What the guest's code or a later part of the detour reads: it must be as it was at the probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needed {
    registers: u16,
    flags: bool,
}

impl Needed {
    /// What the guest's code will read.
    pub(super) fn live(dead: Dead) -> Self {
        Self {
            registers: !dead.registers | 1 << RSP,
            flags: !dead.flags,
        }
    }

    /// These and one more.
    pub(super) fn and_register(self, number: u8) -> Self {
        Self {
            registers: self.registers | 1 << number,
            ..self
        }
    }

    /// These and the flags.
    pub(super) fn and_flags(self) -> Self {
        Self {
            flags: true,
            ..self
        }
    }

    pub(super) fn register(self, number: u8) -> bool {
        self.registers >> number & 1 == 1
    }

    pub(super) fn flags(self) -> bool {
        self.flags
    }
}

/// What is in a word of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Register(u8),
    /// RFLAGS as they were.
    Flags,
    /// What [`hold_flags`] makes.
    Held,
    /// Room for this many bytes of something else.
    Room(i32),
}

impl Kept {
    fn len(self) -> i32 {
        match self {
            Self::Room(bytes) => bytes,
            Self::Register(_) | Self::Flags | Self::Held => WORD,
        }
    }
}

/// What one part of a detour has pushed, in that order.
#[derive(Debug, Clone, Default)]
pub(super) struct Saved(Vec<Kept>);

impl Saved {
    /// Puts RFLAGS aside: what is to be recorded of them.
    pub(super) fn save_flags(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        self.0.push(Kept::Flags);
        a.pushfq()
    }

    /// Puts the arithmetic flags aside, and loses RAX.
    pub(super) fn save_arithmetic_flags(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        hold_flags(a)?;
        self.0.push(Kept::Held);
        a.push(reg::rax)
    }

    /// Puts a register aside. RSP has to be the first.
    pub(super) fn save(&mut self, a: &mut CodeAssembler, number: u8) -> Result<(), IcedError> {
        self.0.push(Kept::Register(number));
        a.push(gpr(number))
    }

    /// Makes room for `bytes` bytes, a multiple of 8, at RSP.
    pub(super) fn make_room(&mut self, a: &mut CodeAssembler, bytes: i32) -> Result<(), IcedError> {
        self.0.push(Kept::Room(bytes));
        drop_bytes(a, -bytes)
    }

    /// Gives back the room that was made last.
    pub(super) fn drop_room(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        match self.0.last() {
            Some(Kept::Room(bytes)) => drop_bytes(a, *bytes),
            _ => Ok(()),
        }
    }

    /// Takes note that other code has pushed `bytes` bytes.
    pub(super) fn pushed(&mut self, bytes: i32) {
        self.0.push(Kept::Room(bytes));
    }

    /// RFLAGS and all registers but RSP, as [`Self::save_all`] puts them aside.
    pub(super) fn all() -> Self {
        let registers = (0..GENERAL).filter(|number| *number != RSP);
        let registers = registers.map(Kept::Register);
        Self([Kept::Flags].into_iter().chain(registers).collect())
    }

    /// Puts all of [`Self::all`] aside.
    pub(super) fn save_all(a: &mut CodeAssembler) -> Result<Self, IcedError> {
        let all = Self::all();
        for kept in &all.0 {
            match kept {
                Kept::Register(number) => a.push(gpr(*number))?,
                Kept::Flags => a.pushfq()?,
                Kept::Held | Kept::Room(_) => {}
            }
        }
        Ok(all)
    }

    /// Bytes that RSP is below what it was at the probe.
    pub(super) fn depth(&self) -> i32 {
        self.0.iter().map(|kept| kept.len()).sum()
    }

    /// Where a register's value is now, from RSP, if it was put aside.
    pub(super) fn of(&self, number: u8) -> Option<i32> {
        self.find(Kept::Register(number))
    }

    /// Where RFLAGS are now, from RSP, if they were put aside.
    pub(super) fn of_flags(&self) -> Option<i32> {
        self.find(Kept::Flags)
    }

    fn find(&self, kept: Kept) -> Option<i32> {
        let at = self.0.iter().rposition(|found| *found == kept)?;
        Some(self.0.iter().skip(at + 1).map(|behind| behind.len()).sum())
    }

    /// Undoes it all: restores the arithmetic flags, if they are `needed` and were put aside, and the registers that
    /// are needed. Until then RAX may be used, if it was put aside.
    pub(super) fn restore(&self, a: &mut CodeAssembler, needed: Needed) -> Result<(), IcedError> {
        if needed.flags() {
            if let Some(at) = self.find(Kept::Held) {
                a.mov(reg::rax, qword_ptr(reg::rsp + at))?;
                release_flags(a)?;
            } else if let Some(at) = self.of_flags() {
                // OF is bit 3 of the second byte: 8 + 78h is beyond what 8 bits have of signed
                // numbers, 78h isn't. The first byte is what SAHF takes from AH.
                a.mov(reg::ah, byte_ptr(reg::rsp + at))?;
                a.mov(reg::al, byte_ptr(reg::rsp + (at + 1)))?;
                a.and(reg::al, 8)?;
                a.add(reg::al, 0x78)?;
                a.sahf()?;
            }
        }
        let mut skip = 0;
        for kept in self.0.iter().rev() {
            match kept {
                Kept::Register(number) if needed.register(*number) => {
                    drop_bytes(a, std::mem::take(&mut skip))?;
                    a.pop(gpr(*number))?;
                }
                _ => skip += kept.len(),
            }
        }
        drop_bytes(a, skip)
    }
}

/// Moves RSP without changing flags.
fn drop_bytes(a: &mut CodeAssembler, bytes: i32) -> Result<(), IcedError> {
    match bytes {
        0 => Ok(()),
        bytes => a.lea(reg::rsp, qword_ptr(reg::rsp + bytes)),
    }
}

/// Brings the arithmetic flags to AH and AL. This and [`release_flags`] take a fifth of the time that
/// `pushfq` and `popfq` take.
pub(super) fn hold_flags(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.lahf()?;
    a.seto(reg::al)
}

/// Does the opposite: 1 + 7fh is beyond what 8 bits have of signed numbers, which sets OF.
pub(super) fn release_flags(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.add(reg::al, 0x7f)?;
    a.sahf()
}

/// Chooses a register to use, other than `except`: one that isn't needed, if there is one.
pub(super) fn scratch(dead: Dead, needed: Needed, except: &[u8]) -> u8 {
    const CANDIDATES: [u8; 13] = [11, 10, 9, 8, 1, 6, 7, 3, 5, 12, 13, 14, 15];
    let cost = |number: &u8| {
        let live = dead.registers >> number & 1 == 0;
        (needed.register(*number), live)
    };
    let candidates = CANDIDATES.iter().copied();
    candidates
        .filter(|number| !except.contains(number))
        .min_by_key(cost)
        .unwrap_or(CANDIDATES[0])
}

/// A whole register.
pub(super) fn gpr(number: u8) -> AsmRegister64 {
    const ALL: [AsmRegister64; 16] = [
        reg::rax,
        reg::rcx,
        reg::rdx,
        reg::rbx,
        reg::rsp,
        reg::rbp,
        reg::rsi,
        reg::rdi,
        reg::r8,
        reg::r9,
        reg::r10,
        reg::r11,
        reg::r12,
        reg::r13,
        reg::r14,
        reg::r15,
    ];
    ALL[usize::from(number & 15)]
}

/// A register or its low part.
pub(super) fn register(number: u8, size: u8) -> Register {
    let number = u32::from(number & 15);
    match (size, number) {
        // AH to BH have the numbers 4 to 7 without REX (SDM vol. 2, table 3-1).
        (1, 0..4) => Register::AL + number,
        (1, _) => Register::SPL + (number - 4),
        (2, _) => Register::AX + number,
        (4, _) => Register::EAX + number,
        _ => Register::RAX + number,
    }
}

/// Memory at `displacement` bytes from RSP.
pub(super) fn on_stack(displacement: i32) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RSP, displacement.into())
}
