//! How a kernel's ORC entries are encoded.
//!
//! An entry has six bytes: `sp_offset` and `bp_offset`, each 16 bits with a sign, and a word of bit fields:
//!
//! | Linux | bits 0 to 3 | 4 to 7 | 8, 9 | 10 | 11 |
//! |---|---|---|---|---|---|
//! | up to 6.2 | `sp_reg` | `bp_reg` | `type` | `end` | |
//! | 6.3 | `sp_reg` | `bp_reg` | `type` | `signal` | `end` |
//! | from 6.4 | `sp_reg` | `bp_reg` | `type` | `type` | `signal` |
//!
//! Sources: `arch/x86/include/asm/orc_types.h`, changed by the commits ffb1b4a41016 (6.3) and fb799447ae29
//! (6.4). Maintainers backport these, so a kernel's types decide, and its version only where it has no types.
//! A later kernel numbers the registers anew, and adds RAX.

use super::entry::{Base, FrameType, OrcEntry, Register};
use super::error::OrcError;
use crate::btf::{BitField, Btf};

/// Bytes of an entry.
pub(super) const ENTRY_LEN: usize = 6;

/// Which bits of the word mean what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bits {
    /// Up to Linux 6.2.
    TypeEnd,
    /// Linux 6.3.
    TypeSignalEnd,
    /// From Linux 6.4.
    LongTypeSignal,
}

/// The numbers of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// RSP is 5, and the stack pointer found before ([`Base::PreviousSp`]) is 1. Some kernels have RAX as 10.
    Sp5,
    /// RSP is 3, and the stack pointer found before is 8.
    Sp3,
}

/// How one kernel encodes its entries; its modules do it the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) bits: Bits,
    pub(super) numbers: Numbers,
}

impl Bits {
    /// Returns the format that the kernel's type `orc_entry` describes; `None` where there is no such type.
    ///
    /// # Errors
    /// [`OrcError::UnknownFormat`]
    pub(super) fn of_types(btf: &Btf) -> Result<Option<Self>, OrcError> {
        let Ok(size) = btf.size_of("orc_entry") else {
            return Ok(None);
        };
        // In bits from the start of the entry, whose third word has the bit fields.
        let field = |name| {
            let member = btf.member("orc_entry", name).ok()?;
            let BitField { shift, len } = member.bits?;
            Some((
                member.offset.checked_mul(8)?.checked_add(shift.into())?,
                len,
            ))
        };
        let bits = match ["type", "signal", "end"].map(field) {
            [Some((40, 2)), None, Some((42, 1))] => Self::TypeEnd,
            [Some((40, 2)), Some((42, 1)), Some((43, 1))] => Self::TypeSignalEnd,
            [Some((40, 3)), Some((43, 1)), None] => Self::LongTypeSignal,
            _ => return Err(OrcError::UnknownFormat),
        };
        let others = ["sp_reg", "bp_reg"].map(field);
        if size != ENTRY_LEN as u64 || others != [Some((32, 4)), Some((36, 4))] {
            return Err(OrcError::UnknownFormat);
        }
        Ok(Some(bits))
    }

    /// Returns the format of a kernel's release, such as `6.1.0-56-cloud-amd64`; `None` if the text is no release.
    pub(super) fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.splitn(3, |c: char| !c.is_ascii_digit());
        let mut number = || numbers.next()?.parse::<u32>().ok();
        Some(match (number()?, number()?) {
            (..=5, _) | (6, ..=2) => Self::TypeEnd,
            (6, 3) => Self::TypeSignalEnd,
            _ => Self::LongTypeSignal,
        })
    }
}

impl Numbers {
    /// Finds out which numbers a table uses: most code finds its caller by RSP, and hardly any by RDI, which has the
    /// same number in the other numbering.
    pub(super) fn of_entries(entries: &[[u8; ENTRY_LEN]]) -> Self {
        let count = |number| {
            let is_it = |[.., low, _]: &&[u8; ENTRY_LEN]| low & 0xf == number;
            entries.iter().filter(is_it).count()
        };
        if count(3) > count(5) {
            Self::Sp3
        } else {
            Self::Sp5
        }
    }

    fn base(self, number: u8) -> Base {
        match (self, number) {
            (_, 0) => Base::Undefined,
            (Self::Sp5, 1) | (Self::Sp3, 8) => Base::PreviousSp,
            (Self::Sp5, 5) | (Self::Sp3, 3) => Base::Sp,
            (_, 4) => Base::Bp,
            (_, 9) => Base::SpIndirect,
            (Self::Sp5, 8) | (Self::Sp3, 10) => Base::BpIndirect,
            (Self::Sp5, 10) | (Self::Sp3, 1) => Base::Register(Register::Rax),
            (_, 2) => Base::Register(Register::Rdx),
            (Self::Sp5, 3) | (Self::Sp3, 5) => Base::Register(Register::Rdi),
            (_, 6) => Base::Register(Register::R10),
            (_, 7) => Base::Register(Register::R13),
            _ => Base::Unknown,
        }
    }
}

impl Format {
    /// Decodes the bytes of an entry.
    pub(super) fn decode(self, [s0, s1, b0, b1, low, high]: [u8; ENTRY_LEN]) -> OrcEntry {
        let sp = self.numbers.base(low & 0xf);
        let bit = |at: u8| high >> at & 1 != 0;
        let (frame, signal) = match self.bits {
            Bits::LongTypeSignal => (long_type(high & 7), bit(3)),
            Bits::TypeSignalEnd => (short_type(high & 3, sp, bit(3)), bit(2)),
            Bits::TypeEnd => {
                let frame = short_type(high & 3, sp, bit(2));
                let signal = matches!(frame, FrameType::Registers | FrameType::PartialRegisters);
                (frame, signal)
            }
        };
        OrcEntry {
            sp,
            sp_offset: i16::from_le_bytes([s0, s1]),
            bp: self.numbers.base(low >> 4),
            bp_offset: i16::from_le_bytes([b0, b1]),
            frame,
            signal,
        }
    }
}

/// Decodes `ORC_TYPE_...` from Linux 6.4.
fn long_type(number: u8) -> FrameType {
    match number {
        0 => FrameType::Undefined,
        1 => FrameType::EndOfStack,
        2 => FrameType::Call,
        3 => FrameType::Registers,
        4 => FrameType::PartialRegisters,
        _ => FrameType::Unknown,
    }
}

/// Decodes `UNWIND_HINT_TYPE_...` and `ORC_TYPE_...` before Linux 6.4, where code without a stack pointer has no type
/// of its own (`unwind_next_frame` in `arch/x86/kernel/unwind_orc.c`).
fn short_type(number: u8, sp: Base, end: bool) -> FrameType {
    match (sp, number) {
        (Base::Undefined, _) if end => FrameType::EndOfStack,
        (Base::Undefined, _) => FrameType::Undefined,
        (_, 0) => FrameType::Call,
        (_, 1) => FrameType::Registers,
        (_, 2) => FrameType::PartialRegisters,
        _ => FrameType::Unknown,
    }
}
