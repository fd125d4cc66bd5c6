//! How the kernel's tables name places in its text.

use std::ops::Range;

use guest_state::GuestVirtAddr;
use guest_state::x86_64::paging::UPPER_HALF;

use super::BlacklistError;
use crate::btf::Btf;
use crate::instruction;

/// A table as it is in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawTable<'a> {
    /// Its name, for errors.
    pub(crate) name: &'a str,
    /// Where it begins.
    pub(crate) address: GuestVirtAddr,
    pub(crate) bytes: &'a [u8],
}

/// How an entry gives the address of its place; it is always the entry's first field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pointer {
    /// The address itself (u64). 0 stands for an entry that was taken out.
    Absolute,
    /// The distance from the field (s32).
    Relative,
}

/// How long a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// The same length for each place, in bytes.
    Fixed(u64),
    /// As long as the instruction there.
    Instruction,
    /// The length that the entry's byte at this offset gives.
    Field(usize),
}

/// The form of a table's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bytes of an entry.
    pub(crate) stride: usize,
    pub(crate) pointer: Pointer,
    pub(crate) length: Length,
}

impl Format {
    /// Entries that are nothing but an address.
    pub(crate) const fn addresses(length: Length) -> Self {
        Self {
            stride: 8,
            pointer: Pointer::Absolute,
            length,
        }
    }

    /// Entries that are nothing but a distance.
    pub(crate) const fn distances(length: Length) -> Self {
        Self::relative(4, length)
    }

    /// Entries of `stride` bytes that begin with a distance.
    pub(crate) const fn relative(stride: usize, length: Length) -> Self {
        Self {
            stride,
            pointer: Pointer::Relative,
            length,
        }
    }

    /// `struct jump_entry` (`include/linux/jump_label.h`): code, target, key.
    pub(crate) const JUMP_LABEL: Self = Self::relative(16, Length::Instruction);
    /// `struct static_call_site` (`include/linux/static_call_types.h`): address, key.
    pub(crate) const STATIC_CALL: Self = Self::relative(8, Length::Instruction);
    /// `struct paravirt_patch_site` (`arch/x86/include/asm/paravirt_types.h`, up to Linux 6.6):
    /// address, type, length.
    pub(crate) const PARAVIRT: Self = Self {
        stride: 16,
        pointer: Pointer::Absolute,
        length: Length::Field(9),
    };
    /// `__mcount_loc`: the instruction that ftrace patches is a call or a nop of 5 bytes.
    pub(crate) const FTRACE: Self = Self::addresses(Length::Fixed(5));

    /// `_kprobe_blacklist`: the addresses of functions.
    pub(crate) const FUNCTIONS: Self = Self::addresses(Length::Fixed(1));

    /// `struct bug_entry` (`include/asm-generic/bug.h`): the distance, then fields that depend on the kernel's
    /// configuration. Without BTF, the size is that of distributions' kernels.
    pub(crate) fn bug(btf: Option<&Btf>) -> Self {
        Self::relative(size(btf, "bug_entry", 12), Length::Instruction)
    }

    /// `struct exception_table_entry` (`arch/x86/include/asm/extable.h`): instruction, fix-up,
    /// and from Linux 5.16 what to do.
    pub(crate) fn exception(btf: Option<&Btf>) -> Self {
        Self::relative(size(btf, "exception_table_entry", 12), Length::Fixed(1))
    }

    /// `struct alt_instr` (`arch/x86/include/asm/alternative.h`): 12 bytes up to Linux 6.2, then
    /// 14. The lengths of instruction and replacement are the last two. `None` without BTF.
    pub(crate) fn alternative(btf: Option<&Btf>) -> Option<Self> {
        let btf = btf?;
        let stride = usize::try_from(btf.size_of("alt_instr").ok()?).ok()?;
        let length = btf.member("alt_instr", "instrlen").ok()?.offset;
        let length = usize::try_from(length).ok()?;
        Some(Self::relative(stride, Length::Field(length)))
    }

    /// The forms of [`Self::alternative`] to try where there is no BTF.
    pub(crate) const ALTERNATIVES: [Self; 2] = [
        Self::relative(14, Length::Field(12)),
        Self::relative(12, Length::Field(10)),
    ];

    /// Returns the entries of a table, each with its address.
    pub(crate) fn entries<'a>(
        self,
        table: RawTable<'a>,
    ) -> Result<impl Iterator<Item = (GuestVirtAddr, &'a [u8])>, BlacklistError> {
        let field = match self.pointer {
            Pointer::Absolute => 8,
            Pointer::Relative => 4,
        };
        if self.stride < field || !table.bytes.len().is_multiple_of(self.stride) {
            return Err(BlacklistError::Uneven {
                table: table.name.to_owned(),
                len: table.bytes.len(),
                entry: self.stride,
            });
        }
        let entries = table.bytes.chunks_exact(self.stride).zip(0_u64..);
        Ok(entries.map(move |(entry, index)| {
            let from_start = index * self.stride as u64;
            (table.address.wrapping_add(from_start), entry)
        }))
    }

    /// Returns the places that a table names, in the table's order. `code` returns the bytes of code at an address, up
    /// to the longest instruction, or `None` if no code is there.
    pub(crate) fn places<'a>(
        self,
        table: RawTable<'a>,
        code: impl Fn(GuestVirtAddr) -> Option<&'a [u8]>,
    ) -> Result<impl Iterator<Item = Result<Range<GuestVirtAddr>, BlacklistError>>, BlacklistError>
    {
        let entries = self.entries(table)?.enumerate();
        Ok(entries.filter_map(move |(i, (at, entry))| {
            let start = self.pointer.read(entry, at)?;
            let end = code(start).and_then(|code| {
                let len = self.length.read(entry, code, start)?;
                start.checked_add(len)
            });
            Some(match end {
                Some(end) => Ok(start..end),
                // 0 stands for a weak function that another one has replaced (`scripts/sorttable.c`). A kernel that
                // moves itself adds the move to this 0, too.
                None if start < UPPER_HALF => return None,
                None => Err(BlacklistError::NotCode {
                    table: table.name.to_owned(),
                    entry: i,
                    address: start,
                }),
            })
        }))
    }
}

impl Length {
    fn read(self, entry: &[u8], code: &[u8], at: GuestVirtAddr) -> Option<u64> {
        match self {
            Self::Fixed(len) => Some(len),
            Self::Field(at) => entry.get(at).copied().map(u64::from),
            Self::Instruction => Some(instruction::len(code, at)? as u64),
        }
    }
}

impl Pointer {
    /// Returns the address that the field at `at` gives; `entry` begins with this field.
    pub(crate) fn read(self, entry: &[u8], at: GuestVirtAddr) -> Option<GuestVirtAddr> {
        match self {
            Self::Absolute => {
                let address = u64::from_le_bytes(*entry.first_chunk()?);
                (address != 0).then_some(GuestVirtAddr(address))
            }
            Self::Relative => {
                let distance = i64::from(i32::from_le_bytes(*entry.first_chunk()?));
                Some(at.wrapping_add(distance.cast_unsigned()))
            }
        }
    }
}

fn size(btf: Option<&Btf>, name: &str, usual: usize) -> usize {
    btf.and_then(|btf| btf.size_of(name).ok())
        .and_then(|size| usize::try_from(size).ok())
        .unwrap_or(usual)
}
