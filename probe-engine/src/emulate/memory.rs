//! Memory operands: translation with the checks that the CPU makes.
//!
//! Source: Intel SDM vol. 3A, 4.6 ("Access Rights") and 4.7 ("Page-Fault
//! Exceptions"); AMD64 APM vol. 2, 5.6 and 8.2.15.

use std::cell::Cell;

use super::flags::AC;
use super::plan::Width;
use crate::addr::{GuestPhysAddr, GuestVirtAddr};
use crate::guest::{GuestMemory, MemoryError};
use crate::paging::{PageTables, WalkError, walk};
use crate::vcpu::ControlRegisters;

const CR0_WP: u64 = 1 << 16;
const CR4_SMAP: u64 = 1 << 21;
const CR4_PKE: u64 = 1 << 22;
const CR4_PKS: u64 = 1 << 24;

const FAULT_PRESENT: u32 = 1 << 0;
const FAULT_WRITE: u32 = 1 << 1;
const FAULT_RESERVED: u32 = 1 << 3;

const ENTRY_ACCESSED: u64 = 1 << 5;
const ENTRY_DIRTY: u64 = 1 << 6;

const PAGE: u64 = 4096;

/// Why an access can't be done here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The CPU would raise this page fault.
    Fault {
        address: GuestVirtAddr,
        error_code: u32,
    },
    /// Only the CPU knows: memory that isn't RAM, an address that isn't
    /// canonical, protection keys.
    Step,
    /// The access is allowed, but the CPU has to note it in an entry's accessed
    /// or dirty bit.
    Unmarked,
}

/// What an access does. A read-modify-write is a write from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Translated bytes, at most eight: those on a first page and those on the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    first: GuestPhysAddr,
    /// How many bytes are at `first`, and how many in all.
    split: usize,
    len: usize,
    second: GuestPhysAddr,
}

/// Guest memory through the eyes of one vCPU in supervisor mode.
pub(crate) struct View<'a> {
    memory: &'a dyn GuestMemory,
    tables: PageTables,
    control: ControlRegisters,
}

impl<'a> View<'a> {
    pub(crate) fn new(
        memory: &'a dyn GuestMemory,
        control: ControlRegisters,
    ) -> Result<Self, Trouble> {
        let tables = control.page_tables().map_err(|_| Trouble::Step)?;
        Ok(Self {
            memory,
            tables,
            control,
        })
    }

    pub(crate) fn control(&self) -> &ControlRegisters {
        &self.control
    }

    /// Where the byte at `at` is in physical memory, if the access is allowed.
    pub(crate) fn translate(
        &self,
        at: GuestVirtAddr,
        access: Access,
        rflags: u64,
    ) -> Result<GuestPhysAddr, Trouble> {
        let write = if access == Access::Write {
            FAULT_WRITE
        } else {
            0
        };
        let fault = |bits| {
            Err(Trouble::Fault {
                address: at,
                error_code: bits | write,
            })
        };
        let entries = Entries::new(self.memory);
        let page = match walk(&entries, self.tables, at) {
            Ok(page) => page,
            Err(WalkError::NotPresent { .. }) => return fault(0),
            Err(WalkError::ReservedBits { .. }) => return fault(FAULT_PRESENT | FAULT_RESERVED),
            Err(WalkError::NonCanonical { .. } | WalkError::Memory { .. }) => {
                return Err(Trouble::Step);
            }
        };
        let smap = self.control.cr4 & CR4_SMAP != 0 && rflags & AC == 0;
        if page.user && smap {
            return fault(FAULT_PRESENT);
        }
        if self.control.cr4 & if page.user { CR4_PKE } else { CR4_PKS } != 0 {
            return Err(Trouble::Step);
        }
        if access == Access::Write && !page.writable && self.control.cr0 & CR0_WP != 0 {
            return fault(FAULT_PRESENT);
        }
        if !entries.accessed() || access == Access::Write && !entries.dirty() {
            return Err(Trouble::Unmarked);
        }
        Ok(page.phys)
    }

    /// Translates and checks all bytes of an operand before any is touched.
    pub(crate) fn span(
        &self,
        at: u64,
        width: Width,
        access: Access,
        rflags: u64,
    ) -> Result<Span, Trouble> {
        let len = width.bytes();
        let split = len.min((PAGE - at % PAGE) as usize);
        let first = self.translate(GuestVirtAddr(at), access, rflags)?;
        let second = if split < len {
            let at = at.checked_add(split as u64).ok_or(Trouble::Step)?;
            self.translate(GuestVirtAddr(at), access, rflags)?
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

    /// Reads an operand, zero-extended.
    pub(crate) fn load(&self, span: Span) -> Result<u64, Trouble> {
        let mut bytes = [0; 8];
        self.memory
            .read(span.first, &mut bytes[..span.split])
            .map_err(|_| Trouble::Step)?;
        if span.split < span.len {
            self.memory
                .read(span.second, &mut bytes[span.split..span.len])
                .map_err(|_| Trouble::Step)?;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes an operand, or nothing of it; not where the guest can't write at all, whatever its
    /// page tables say.
    pub(crate) fn store(&self, span: Span, value: u64) -> Result<(), Trouble> {
        let bytes = value.to_le_bytes();
        if span.split < span.len {
            // The second page first proves to be memory; the two writes are no more one
            // than they are on a real CPU.
            let mut old = [0; 8];
            let old = &mut old[..span.split];
            self.memory
                .read(span.first, old)
                .map_err(|_| Trouble::Step)?;
            self.memory
                .write_as_guest(span.first, &bytes[..span.split])
                .map_err(|_| Trouble::Step)?;
            return self
                .memory
                .write_as_guest(span.second, &bytes[span.split..span.len])
                .map_err(|_| {
                    // The CPU will do the whole instruction: leave it what it expects.
                    let _undone = self.memory.write_as_guest(span.first, old);
                    Trouble::Step
                });
        }
        self.memory
            .write_as_guest(span.first, &bytes[..span.len])
            .map_err(|_| Trouble::Step)
    }
}

/// Guest memory that notes the page table entries a walk reads through it.
struct Entries<'a> {
    memory: &'a dyn GuestMemory,
    all: Cell<u64>,
    last: Cell<u64>,
}

impl<'a> Entries<'a> {
    fn new(memory: &'a dyn GuestMemory) -> Self {
        // Without paging there are no entries, and nothing to set in them.
        Self {
            memory,
            all: Cell::new(u64::MAX),
            last: Cell::new(u64::MAX),
        }
    }

    fn accessed(&self) -> bool {
        self.all.get() & ENTRY_ACCESSED != 0
    }

    fn dirty(&self) -> bool {
        self.last.get() & ENTRY_DIRTY != 0
    }
}

impl GuestMemory for Entries<'_> {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(at, into)?;
        if let Ok(entry) = <[u8; 8]>::try_from(&*into) {
            let entry = u64::from_le_bytes(entry);
            self.all.set(self.all.get() & entry);
            self.last.set(entry);
        }
        Ok(())
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(at, from)
    }
}
