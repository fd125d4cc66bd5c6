//! Guest memory as a vCPU in supervisor mode accesses it: by the guest's page tables, with the checks
//! that the processor makes.
//!
//! `KVM_TRANSLATE` isn't enough for this: it says of every page that it can be written
//! (arch/x86/kvm/x86.c, `kvm_arch_vcpu_ioctl_translate`).
//!
//! Sources: Intel SDM vol. 3A, 4.6 ("Access Rights") and 4.7 ("Page-Fault Exceptions"); AMD64 APM
//! vol. 2, 5.6 and 8.2.15.

use super::PAGE_SIZE;
use super::control::{ControlRegisters, cr0, cr4};
use super::flags::AC;
use super::paging::{PageTables, PagingModeError, WalkError, walk};
use crate::addr::{GuestPhysAddr, GuestVirtAddr};
use crate::memory::GuestMemory;

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

impl From<PagingModeError> for AccessError {
    fn from(_: PagingModeError) -> Self {
        Self::Unknown
    }
}

/// What an access does. A read-modify-write is a write from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// Bytes that may be accessed, translated: those on a first page and those on the next.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    first: GuestPhysAddr,
    /// How many bytes are at `first`, and how many in all.
    split: usize,
    len: usize,
    second: GuestPhysAddr,
}

/// Guest memory as one vCPU in supervisor mode accesses it.
#[derive(Clone, Copy)]
pub struct SupervisorMemory<'a> {
    memory: &'a dyn GuestMemory,
    tables: PageTables,
    cr0: u64,
    cr4: u64,
    fs_base: u64,
    gs_base: u64,
}

impl<'a> SupervisorMemory<'a> {
    /// The memory as a vCPU with these control registers accesses it.
    ///
    /// # Errors
    /// The vCPU runs with 32-bit paging.
    pub fn new(
        memory: &'a dyn GuestMemory,
        control: &ControlRegisters,
    ) -> Result<Self, PagingModeError> {
        let tables = control.page_tables()?;
        Ok(Self {
            memory,
            tables,
            cr0: control.cr0,
            cr4: control.cr4,
            fs_base: control.fs_base,
            gs_base: control.gs_base,
        })
    }

    /// Base of the FS segment.
    pub fn fs_base(&self) -> u64 {
        self.fs_base
    }

    /// Base of the GS segment.
    pub fn gs_base(&self) -> u64 {
        self.gs_base
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
        let smap = self.cr4 & cr4::SMAP != 0 && rflags & AC == 0;
        if page.user() && smap {
            return fault(FAULT_PRESENT);
        }
        if self.cr4 & if page.user() { cr4::PKE } else { cr4::PKS } != 0 {
            return Err(AccessError::Unknown);
        }
        if is_write && !page.writable() && self.cr0 & cr0::WP != 0 {
            return fault(FAULT_PRESENT);
        }
        if !page.accessed() || is_write && !page.dirty() {
            return Err(AccessError::Unmarked);
        }
        Ok(page.phys)
    }

    /// Translates and checks all bytes of an access, at most a page of them, before any is touched.
    ///
    /// # Errors
    /// Part of it can't be accessed.
    pub fn span(
        &self,
        at: GuestVirtAddr,
        len: usize,
        intent: Intent,
        rflags: u64,
    ) -> Result<Span, AccessError> {
        let split = len.min((PAGE_SIZE - at.0 % PAGE_SIZE) as usize);
        let first = self.translate(at, intent, rflags)?;
        let rest = len - split;
        if rest as u64 > PAGE_SIZE {
            return Err(AccessError::Unknown);
        }
        let second = if rest > 0 {
            let at = at.checked_add(split as u64).ok_or(AccessError::Unknown)?;
            self.translate(at, intent, rflags)?
        } else {
            first
        };
        Ok(Span {
            first,
            split,
            len,
            second,
        })
    }

    /// Reads an operand of at most 8 bytes, zero-extended.
    ///
    /// # Errors
    /// Part of it is no memory, or it is longer.
    pub fn load(&self, span: Span) -> Result<u64, AccessError> {
        let mut bytes = [0; 8];
        if span.split == bytes.len() {
            let word = self.memory.read_u64(span.first);
            return word.map_err(|_| AccessError::Unknown);
        }
        let operand = bytes.get_mut(..span.len).ok_or(AccessError::Unknown)?;
        self.read_span(span, operand)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes an operand of at most 8 bytes, or nothing of it. Memory that the guest can't write at all
    /// isn't written, whatever its page tables say.
    ///
    /// # Errors
    /// Part of it can't be written, or it is longer.
    pub fn store(&self, span: Span, value: u64) -> Result<(), AccessError> {
        let bytes = value.to_le_bytes();
        let operand = bytes.get(..span.len).ok_or(AccessError::Unknown)?;
        if span.split == span.len {
            return self.write_physical(span.first, operand);
        }
        self.write_span(span, operand)
    }

    /// Reads a range of at most a page, with RFLAGS.AC clear, as the processor reads its own tables.
    ///
    /// # Errors
    /// Part of it can't be read.
    pub fn read(&self, at: GuestVirtAddr, into: &mut [u8]) -> Result<(), AccessError> {
        let span = self.span(at, into.len(), Intent::Read, 0)?;
        self.read_span(span, into)
    }

    /// Reads a word of 8 bytes, as [`Self::read`].
    ///
    /// # Errors
    /// Part of it can't be read.
    pub fn read_u64(&self, at: GuestVirtAddr) -> Result<u64, AccessError> {
        self.load(self.span(at, 8, Intent::Read, 0)?)
    }

    /// Writes a range of at most a page, with RFLAGS.AC clear, as the processor pushes an exception's
    /// frame; nothing where part of it may not be written.
    ///
    /// # Errors
    /// Part of it can't be written.
    pub fn write(&self, at: GuestVirtAddr, from: &[u8]) -> Result<(), AccessError> {
        let span = self.span(at, from.len(), Intent::Write, 0)?;
        self.write_span(span, from)
    }

    fn read_span(&self, span: Span, into: &mut [u8]) -> Result<(), AccessError> {
        let (first, second) = into.split_at_mut(span.split);
        self.read_physical(span.first, first)?;
        if second.is_empty() {
            return Ok(());
        }
        self.read_physical(span.second, second)
    }

    fn write_span(&self, span: Span, from: &[u8]) -> Result<(), AccessError> {
        let (first, second) = from.split_at(span.split);
        if second.is_empty() {
            return self.write_physical(span.first, first);
        }
        // The first page's old bytes are kept in case the second one can't be written. The two writes
        // together aren't atomic, nor are they on a real CPU.
        let mut old = vec![0; first.len()];
        self.read_physical(span.first, &mut old)?;
        self.write_physical(span.first, first)?;
        let written = self.write_physical(span.second, second);
        written.inspect_err(|_| {
            // The CPU does the whole access instead: it must find the first page as it was.
            let _undone = self.write_physical(span.first, &old);
        })
    }

    fn read_physical(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), AccessError> {
        let read = self.memory.read(at, into);
        read.map_err(|_| AccessError::Unknown)
    }

    fn write_physical(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), AccessError> {
        let written = self.memory.write_as_guest(at, from);
        written.map_err(|_| AccessError::Unknown)
    }
}

#[cfg(test)]
mod tests;
