//! Guest memory as a vCPU in supervisor mode accesses it: by the guest's page tables, with the checks
//! that the processor makes.
//!
//! `KVM_TRANSLATE` doesn't do for it: it says of every page that it can be written (arch/x86/kvm/x86.c,
//! `kvm_arch_vcpu_ioctl_translate`).
//!
//! Sources: Intel SDM vol. 3A, 4.6 ("Access Rights") and 4.7 ("Page-Fault Exceptions"); AMD64 APM
//! vol. 2, 5.6 and 8.2.15.

use super::PAGE_SIZE;
use super::control::ControlRegisters;
use super::flags::AC;
use super::paging::{PageTables, PagingModeError, WalkError, walk};
use crate::addr::{GuestPhysAddr, GuestVirtAddr};
use crate::memory::GuestMemory;

/// Write protection holds for the supervisor, too.
const CR0_WP: u64 = 1 << 16;
/// The supervisor may not access users' pages, unless RFLAGS.AC is set.
const CR4_SMAP: u64 = 1 << 21;
/// Protection keys of users' pages, and of the supervisor's.
const CR4_PKE: u64 = 1 << 22;
const CR4_PKS: u64 = 1 << 24;

/// Bits of a page fault's error code.
const FAULT_PRESENT: u32 = 1 << 0;
const FAULT_WRITE: u32 = 1 << 1;
const FAULT_RESERVED: u32 = 1 << 3;

/// Why an access can't be done here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessError {
    /// The processor would raise this page fault.
    PageFault {
        /// What CR2 would be.
        address: GuestVirtAddr,
        /// Its error code.
        error_code: u32,
    },
    /// Only the processor knows: memory that isn't RAM, an address that isn't canonical, protection keys.
    Unknown,
    /// The access is allowed, but the processor has to note it in an entry's accessed or dirty bit.
    Unmarked,
}

/// What an access does. A read-modify-write is a write from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// Guest memory as one vCPU in supervisor mode accesses it.
#[derive(Clone, Copy)]
pub struct SupervisorMemory<'a> {
    memory: &'a dyn GuestMemory,
    tables: PageTables,
    control: ControlRegisters,
}

impl<'a> SupervisorMemory<'a> {
    /// That of a vCPU with these control registers.
    ///
    /// # Errors
    /// It runs with 32-bit paging.
    pub fn new(
        memory: &'a dyn GuestMemory,
        control: ControlRegisters,
    ) -> Result<Self, PagingModeError> {
        let tables = control.page_tables()?;
        Ok(Self {
            memory,
            tables,
            control,
        })
    }

    /// The control registers that the rules follow from.
    pub fn control(&self) -> &ControlRegisters {
        &self.control
    }

    /// The memory itself.
    pub fn physical(&self) -> &'a dyn GuestMemory {
        self.memory
    }

    /// Translates an address and checks that its byte may be accessed, with these RFLAGS.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn translate(
        &self,
        at: GuestVirtAddr,
        intent: Intent,
        rflags: u64,
    ) -> Result<GuestPhysAddr, AccessError> {
        let is_write = intent == Intent::Write;
        let fault = |bits| {
            Err(AccessError::PageFault {
                address: at,
                error_code: bits | if is_write { FAULT_WRITE } else { 0 },
            })
        };
        let page = match walk(self.memory, self.tables, at) {
            Ok(page) => page,
            Err(WalkError::NotPresent { .. }) => return fault(0),
            Err(WalkError::ReservedBits { .. }) => return fault(FAULT_PRESENT | FAULT_RESERVED),
            Err(WalkError::NonCanonical { .. } | WalkError::Memory { .. }) => {
                return Err(AccessError::Unknown);
            }
        };
        let smap = self.control.cr4 & CR4_SMAP != 0 && rflags & AC == 0;
        if page.user && smap {
            return fault(FAULT_PRESENT);
        }
        if self.control.cr4 & if page.user { CR4_PKE } else { CR4_PKS } != 0 {
            return Err(AccessError::Unknown);
        }
        if is_write && !page.writable && self.control.cr0 & CR0_WP != 0 {
            return fault(FAULT_PRESENT);
        }
        if !page.accessed || is_write && !page.dirty {
            return Err(AccessError::Unmarked);
        }
        Ok(page.phys)
    }

    /// Reads a range, with RFLAGS.AC clear, as the processor reads its own tables.
    ///
    /// # Errors
    /// Part of it can't be read.
    pub fn read(&self, at: GuestVirtAddr, into: &mut [u8]) -> Result<(), AccessError> {
        let mut rest = into;
        for (phys, len) in self.pieces(at, rest.len(), Intent::Read)? {
            let (piece, behind) = rest.split_at_mut(len);
            let read = self.memory.read(phys, piece);
            read.map_err(|_| AccessError::Unknown)?;
            rest = behind;
        }
        Ok(())
    }

    /// Reads a word of 8 bytes.
    ///
    /// # Errors
    /// Part of it can't be read.
    pub fn read_u64(&self, at: GuestVirtAddr) -> Result<u64, AccessError> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Writes a range, with RFLAGS.AC clear, as the processor pushes an exception's frame; nothing where
    /// part of it may not be written.
    ///
    /// # Errors
    /// Part of it can't be written.
    pub fn write(&self, at: GuestVirtAddr, from: &[u8]) -> Result<(), AccessError> {
        let mut rest = from;
        for (phys, len) in self.pieces(at, from.len(), Intent::Write)? {
            let (piece, behind) = rest.split_at(len);
            let written = self.memory.write_as_guest(phys, piece);
            written.map_err(|_| AccessError::Unknown)?;
            rest = behind;
        }
        Ok(())
    }

    /// The physical pieces of a range, none of them if not all of it may be accessed.
    fn pieces(
        &self,
        at: GuestVirtAddr,
        len: usize,
        intent: Intent,
    ) -> Result<Vec<(GuestPhysAddr, usize)>, AccessError> {
        let mut pieces = Vec::with_capacity(2);
        let mut done = 0;
        while done < len {
            let virt = at.checked_add(done as u64).ok_or(AccessError::Unknown)?;
            let piece = (len - done).min((PAGE_SIZE - virt.0 % PAGE_SIZE) as usize);
            pieces.push((self.translate(virt, intent, 0)?, piece));
            done += piece;
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests;
