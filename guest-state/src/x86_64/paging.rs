//! Translating guest virtual addresses by the guest's own page tables, without the processor.
//!
//! Sources: AMD64 Architecture Programmer's Manual vol. 2, chapter 5 ("Page Translation and
//! Protection"); Intel SDM vol. 3A, 4.5 ("4-Level Paging and 5-Level Paging"). The tables belong
//! to an untrusted guest: a walk reads one entry a level, so it ends whatever they hold.

use thiserror::Error;

use super::PAGE_SIZE;
use super::control::{ControlRegisters, cr0, cr4, efer};
use super::page_entry::{ACCESSED, DIRTY, GLOBAL, LARGE, NO_EXECUTE, PRESENT, USER, WRITABLE};
use crate::addr::{GuestPhysAddr, GuestVirtAddr};
use crate::memory::{GuestMemory, MemoryError};

/// In the entry of a large page, bit 12 is the memory type (PAT) and no address bit.
const LARGE_PAT: u64 = 1 << 12;
/// Bits 12 to 51: the address in an entry and in CR3. Processors with fewer physical address
/// bits reserve the upper ones; here such an address is just outside memory.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The kernel's half of the addresses (`Documentation/arch/x86/x86_64/mm.rst`).
pub const UPPER_HALF: GuestVirtAddr = GuestVirtAddr(1 << 63);

/// How the guest translates addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagingMode {
    /// Paging is off: an address is its own translation.
    Off,
    /// 64-bit paging with four levels of tables, 48-bit addresses.
    FourLevel,
    /// 64-bit paging with five levels of tables, 57-bit addresses.
    FiveLevel,
}

impl PagingMode {
    /// How many levels of tables a walk goes through, at most.
    pub const fn levels(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::FourLevel => 4,
            Self::FiveLevel => 5,
        }
    }
}

/// A paging mode that isn't supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the vCPU runs with 32-bit paging ({}), which vmprobe doesn't read; probe it once the kernel \
     is in 64-bit mode",
    if *.pae { "PAE" } else { "two levels" }
)]
pub struct PagingModeError {
    /// Three levels with 64-bit entries instead of two with 32-bit ones.
    pub pae: bool,
}

/// One set of page tables, as CR3 selects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageTables {
    /// Physical address of the top table.
    pub root: GuestPhysAddr,
    /// How many levels there are.
    pub mode: PagingMode,
    /// True if bit 63 of an entry means "no execution" (`EFER.NXE`); otherwise it is reserved.
    pub no_execute: bool,
}

impl ControlRegisters {
    /// The paging mode that the vCPU is in.
    ///
    /// # Errors
    /// The vCPU runs with 32-bit paging, which a 64-bit kernel leaves behind at its entry.
    pub fn paging_mode(&self) -> Result<PagingMode, PagingModeError> {
        if self.cr0 & cr0::PG == 0 {
            return Ok(PagingMode::Off);
        }
        if self.efer & efer::LMA == 0 {
            return Err(PagingModeError {
                pae: self.cr4 & cr4::PAE != 0,
            });
        }
        Ok(if self.cr4 & cr4::LA57 == 0 {
            PagingMode::FourLevel
        } else {
            PagingMode::FiveLevel
        })
    }

    /// The page tables that the vCPU uses.
    ///
    /// # Errors
    /// As for [`Self::paging_mode`].
    pub fn page_tables(&self) -> Result<PageTables, PagingModeError> {
        Ok(PageTables {
            root: GuestPhysAddr(self.cr3 & ADDRESS),
            mode: self.paging_mode()?,
            no_execute: self.efer & efer::NXE != 0,
        })
    }
}

/// How large the page is that maps an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageSize {
    /// 4 KiB.
    Size4K,
    /// 2 MiB.
    Size2M,
    /// 1 GiB.
    Size1G,
}

impl PageSize {
    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Size4K => 1 << 12,
            Self::Size2M => 1 << 21,
            Self::Size1G => 1 << 30,
        }
    }

    /// The page size of a leaf at a level, where there can be one.
    const fn at_level(level: u8) -> Option<Self> {
        match level {
            1 => Some(Self::Size4K),
            2 => Some(Self::Size2M),
            3 => Some(Self::Size1G),
            _ => None,
        }
    }

    /// Bits that must be zero in the entry of such a page.
    const fn reserved_bits(self) -> u64 {
        ADDRESS & (self.bytes() - 1) & !LARGE_PAT
    }
}

/// Where an address leads, and what may be done there.
///
/// A permission holds if every level grants it. `CR0.WP`, SMEP, SMAP and protection keys, which
/// restrict it further, are left to the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// The physical address.
    pub phys: GuestPhysAddr,
    /// The size of the page.
    pub page_size: PageSize,
    /// The bits that the entries of all levels have.
    all: u64,
    /// The bits that the entry of any level has.
    any: u64,
    /// The page's entry.
    leaf: u64,
}

impl Translation {
    /// Writes are allowed.
    pub const fn writable(&self) -> bool {
        self.all & WRITABLE != 0
    }

    /// User mode may use it.
    pub const fn user(&self) -> bool {
        self.all & USER != 0
    }

    /// Instructions may be fetched from it.
    pub const fn executable(&self) -> bool {
        self.any & NO_EXECUTE == 0
    }

    /// It stays in the TLB when CR3 changes.
    pub const fn global(&self) -> bool {
        self.leaf & GLOBAL != 0
    }

    /// The entries of all levels are marked as accessed.
    pub const fn accessed(&self) -> bool {
        self.all & ACCESSED != 0
    }

    /// The page's entry is marked as written to.
    pub const fn dirty(&self) -> bool {
        self.leaf & DIRTY != 0
    }
}

/// Why an address has no translation. Level 1 is the table of 4 KiB pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WalkError {
    /// Not mapped.
    #[error("{at} is not mapped (no entry at level {level})")]
    NotPresent {
        /// The address.
        at: GuestVirtAddr,
        /// The level whose entry isn't present.
        level: u8,
    },
    /// No address of this paging mode: its upper bits differ from its sign bit.
    #[error("{at} is not a canonical address")]
    NonCanonical {
        /// The address.
        at: GuestVirtAddr,
    },
    /// An entry sets bits that must be zero; the processor would raise a page fault.
    #[error("{at} is mapped by an entry with reserved bits set ({entry:#x} at level {level})")]
    ReservedBits {
        /// The address.
        at: GuestVirtAddr,
        /// The entry's level.
        level: u8,
        /// The entry.
        entry: u64,
    },
    /// A table lies outside guest memory.
    #[error("the page table of {at} at level {level} is outside guest memory")]
    Memory {
        /// The address.
        at: GuestVirtAddr,
        /// The table's level.
        level: u8,
        /// The access that failed.
        source: MemoryError,
    },
}

/// Translates one guest virtual address.
///
/// # Errors
/// See [`WalkError`].
// Each access to memory at a hit begins with a walk. Inlined, it computes only what the caller uses.
#[inline]
pub fn walk(
    memory: &(impl GuestMemory + ?Sized),
    tables: PageTables,
    at: GuestVirtAddr,
) -> Result<Translation, WalkError> {
    if !is_canonical(tables.mode, at) {
        return Err(WalkError::NonCanonical { at });
    }
    let forbidden = if tables.no_execute { 0 } else { NO_EXECUTE };
    let (mut all, mut any) = (u64::MAX, 0);
    let mut table = tables.root;
    let mut level = tables.mode.levels();
    while level > 0 {
        let index = at.0 >> (3 + 9 * u32::from(level)) & 0x1ff;
        let entry = memory
            .read_u64(table.wrapping_add(index * 8))
            .map_err(|source| WalkError::Memory { at, level, source })?;
        if entry & PRESENT == 0 {
            return Err(WalkError::NotPresent { at, level });
        }
        if entry & forbidden != 0 {
            return Err(WalkError::ReservedBits { at, level, entry });
        }
        (all, any) = (all & entry, any | entry);
        if level == 1 || entry & LARGE != 0 {
            // The entry of a level that has no pages of its own reserves the bit for them.
            let page_size = PageSize::at_level(level)
                .filter(|size| entry & size.reserved_bits() == 0)
                .ok_or(WalkError::ReservedBits { at, level, entry })?;
            let within = page_size.bytes() - 1;
            return Ok(Translation {
                phys: GuestPhysAddr(entry & ADDRESS & !within | at.0 & within),
                page_size,
                all,
                any,
                leaf: entry,
            });
        }
        table = GuestPhysAddr(entry & ADDRESS);
        level -= 1;
    }
    // Only without paging is there no table: level 1 is always a leaf.
    Ok(Translation {
        phys: GuestPhysAddr(at.0),
        page_size: PageSize::Size4K,
        all: WRITABLE | USER | ACCESSED,
        any: 0,
        leaf: DIRTY,
    })
}

/// Returns true if an address is canonical in this mode: the bits above the ones that are translated must all
/// equal the highest of those.
#[inline]
pub fn is_canonical(mode: PagingMode, at: GuestVirtAddr) -> bool {
    let unused = match mode {
        PagingMode::Off => return true,
        PagingMode::FourLevel => 16,
        PagingMode::FiveLevel => 7,
    };
    ((at.0 << unused).cast_signed() >> unused).cast_unsigned() == at.0
}

/// A range of virtual addresses that can't be accessed to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("guest memory at {at} can't be accessed: {cause}")]
pub struct VirtFault {
    /// The first address that can't be accessed.
    pub at: GuestVirtAddr,
    /// How many bytes before it were accessed.
    pub done: usize,
    /// What is wrong there.
    pub cause: FaultCause,
}

/// What is wrong with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FaultCause {
    /// It has no translation.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// Its page is read-only.
    #[error("the page of {at} is read-only")]
    ReadOnly {
        /// The address.
        at: GuestVirtAddr,
    },
    /// Its translation is outside guest memory, or in memory that the guest can't write.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Reads a range of virtual addresses, whatever pages it lies in.
///
/// # Errors
/// The first address that can't be read; the bytes before it are in `into`.
pub fn read_virt(
    memory: &(impl GuestMemory + ?Sized),
    tables: PageTables,
    at: GuestVirtAddr,
    into: &mut [u8],
) -> Result<(), VirtFault> {
    read_virt_or(memory, tables, None, at, into)
}

/// Reads a word of 8 bytes, by one load where it lies in one page.
///
/// # Errors
/// As for [`read_virt`].
pub fn read_virt_u64(
    memory: &(impl GuestMemory + ?Sized),
    tables: PageTables,
    at: GuestVirtAddr,
) -> Result<u64, VirtFault> {
    const LEN: usize = size_of::<u64>();
    if piece(at, 0, LEN)?.1 < LEN {
        let mut word = [0; LEN];
        read_virt(memory, tables, at, &mut word)?;
        return Ok(u64::from_le_bytes(word));
    }
    walk(memory, tables, at)
        .map_err(FaultCause::from)
        .and_then(|page| Ok(memory.read_u64(page.phys)?))
        .map_err(|cause| VirtFault { at, done: 0, cause })
}

/// As [`read_virt`], with addresses of the kernel's that `tables` don't map looked up by the kernel's own top
/// table. A vCPU in user mode may have tables with next to nothing of the kernel in them
/// (`Documentation/arch/x86/pti.rst`).
///
/// # Errors
/// As for [`read_virt`].
pub fn read_virt_or(
    memory: &(impl GuestMemory + ?Sized),
    tables: PageTables,
    kernel: Option<GuestPhysAddr>,
    at: GuestVirtAddr,
    into: &mut [u8],
) -> Result<(), VirtFault> {
    let mut done = 0;
    while done < into.len() {
        let (here, len) = piece(at, done, into.len())?;
        let target = &mut into[done..done + len];
        let kernel = kernel.filter(|_| here >= UPPER_HALF);
        walk(memory, tables, here)
            .or_else(|fault| match kernel {
                Some(root) => walk(memory, PageTables { root, ..tables }, here),
                None => Err(fault),
            })
            .map_err(FaultCause::from)
            .and_then(|page| Ok(memory.read(page.phys, target)?))
            .map_err(|cause| VirtFault {
                at: here,
                done,
                cause,
            })?;
        done += len;
    }
    Ok(())
}

/// Writes a range of virtual addresses for the guest: what it could write itself, so no page that
/// its tables have read-only.
///
/// # Errors
/// The first address that can't be written. Nothing is written if any part of the range has no
/// translation or is read-only.
pub fn write_virt(
    memory: &(impl GuestMemory + ?Sized),
    tables: PageTables,
    at: GuestVirtAddr,
    from: &[u8],
) -> Result<(), VirtFault> {
    let mut checked = 0;
    while checked < from.len() {
        let (here, len) = piece(at, checked, from.len())?;
        writable(memory, tables, here).map_err(|cause| VirtFault {
            at: here,
            done: 0,
            cause,
        })?;
        checked += len;
    }
    let mut done = 0;
    while done < from.len() {
        let (here, len) = piece(at, done, from.len())?;
        writable(memory, tables, here)
            .and_then(|phys| Ok(memory.write_as_guest(phys, &from[done..done + len])?))
            .map_err(|cause| VirtFault {
                at: here,
                done,
                cause,
            })?;
        done += len;
    }
    Ok(())
}

/// Translates an address whose page the guest's kernel can write.
fn writable(
    memory: &(impl GuestMemory + ?Sized),
    tables: PageTables,
    at: GuestVirtAddr,
) -> Result<GuestPhysAddr, FaultCause> {
    let page = walk(memory, tables, at)?;
    if page.writable() {
        Ok(page.phys)
    } else {
        Err(FaultCause::ReadOnly { at })
    }
}

/// Returns address and length of the part of a range of `len` bytes at `at` that begins after `done` bytes
/// and ends with the 4 KiB page or the range.
fn piece(at: GuestVirtAddr, done: usize, len: usize) -> Result<(GuestVirtAddr, usize), VirtFault> {
    let here = at.checked_add(done as u64).ok_or_else(|| {
        let at = at.wrapping_add(done as u64);
        VirtFault {
            at,
            done,
            cause: WalkError::NonCanonical { at }.into(),
        }
    })?;
    let to_border = (PAGE_SIZE - here.0 % PAGE_SIZE) as usize;
    Ok((here, to_border.min(len - done)))
}

#[cfg(test)]
mod tests;
