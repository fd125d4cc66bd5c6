//! Memory operands: read and written whole.

use guest_state::x86_64::PAGE_SIZE;
use guest_state::x86_64::supervisor::{AccessError, Intent, SupervisorMemory};
use guest_state::{ControlRegisters, GuestMemory, GuestPhysAddr, GuestVirtAddr};

use super::plan::Width;

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
pub(crate) struct View<'a>(SupervisorMemory<'a>);

impl<'a> View<'a> {
    pub(crate) fn new(
        memory: &'a dyn GuestMemory,
        control: ControlRegisters,
    ) -> Result<Self, AccessError> {
        let view = SupervisorMemory::new(memory, control);
        view.map(Self).map_err(|_| AccessError::Unknown)
    }

    pub(crate) fn control(&self) -> &ControlRegisters {
        self.0.control()
    }

    /// Where the byte at `at` is in physical memory, if the access is allowed.
    pub(crate) fn translate(
        &self,
        at: GuestVirtAddr,
        intent: Intent,
        rflags: u64,
    ) -> Result<GuestPhysAddr, AccessError> {
        self.0.translate(at, intent, rflags)
    }

    /// Translates and checks all bytes of an operand before any is touched.
    pub(crate) fn span(
        &self,
        at: u64,
        width: Width,
        intent: Intent,
        rflags: u64,
    ) -> Result<Span, AccessError> {
        let len = width.bytes();
        let split = len.min((PAGE_SIZE - at % PAGE_SIZE) as usize);
        let first = self.translate(GuestVirtAddr(at), intent, rflags)?;
        let second = if split < len {
            let at = at.checked_add(split as u64).ok_or(AccessError::Unknown)?;
            self.translate(GuestVirtAddr(at), intent, rflags)?
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
    pub(crate) fn load(&self, span: Span) -> Result<u64, AccessError> {
        let mut bytes = [0; 8];
        if span.split == bytes.len() {
            let word = self.0.physical().read_u64(span.first);
            return word.map_err(|_| AccessError::Unknown);
        }
        self.read(span.first, &mut bytes[..span.split])?;
        if span.split < span.len {
            self.read(span.second, &mut bytes[span.split..span.len])?;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes an operand, or nothing of it; not where the guest can't write at all, whatever its
    /// page tables say.
    pub(crate) fn store(&self, span: Span, value: u64) -> Result<(), AccessError> {
        let bytes = value.to_le_bytes();
        if span.split == span.len {
            return self.write(span.first, &bytes[..span.len]);
        }
        // The second page first proves to be memory; the two writes are no more one
        // than they are on a real CPU.
        let mut old = [0; 8];
        let old = &mut old[..span.split];
        self.read(span.first, old)?;
        self.write(span.first, &bytes[..span.split])?;
        let second = self.write(span.second, &bytes[span.split..span.len]);
        second.inspect_err(|_| {
            // The CPU will do the whole instruction: leave it what it expects.
            let _undone = self.write(span.first, old);
        })
    }

    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), AccessError> {
        let read = self.0.physical().read(at, into);
        read.map_err(|_| AccessError::Unknown)
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), AccessError> {
        let written = self.0.physical().write_as_guest(at, from);
        written.map_err(|_| AccessError::Unknown)
    }
}
