//! What a detour does to a ring, without a guest.

use guest_state::{GuestMemory, GuestPhysAddr, MemoryError};

use super::VcpuMemory;
use super::layout::{self, RING_LEN};

/// Writes records into one vCPU's ring, as code on that vCPU does.
#[derive(Debug, Clone, Copy)]
pub struct Producer {
    /// The vCPU's block and ring.
    pub place: VcpuMemory,
}

impl Producer {
    /// Reserves space for a record of so many words; `None` when the ring is full.
    ///
    /// # Errors
    /// The block isn't memory.
    pub fn reserve(&self, memory: &dyn GuestMemory, words: u8) -> Result<Option<u64>, MemoryError> {
        let block = self.place.block;
        let head = memory.read_u64(block.wrapping_add(layout::HEAD))?;
        let tail = memory.read_u64(block.wrapping_add(layout::TAIL))?;
        let new = head.wrapping_add(u64::from(words) * 8);
        if new.wrapping_sub(tail) > RING_LEN {
            return Ok(None);
        }
        memory.write_u64(block.wrapping_add(layout::HEAD), new)?;
        Ok(Some(head))
    }

    /// Writes the words of a record behind its header.
    ///
    /// # Errors
    /// The ring isn't memory.
    pub fn fill(
        &self,
        memory: &dyn GuestMemory,
        at: u64,
        words: &[u64],
    ) -> Result<(), MemoryError> {
        for (word, offset) in words.iter().zip((8..).step_by(8)) {
            memory.write_u64(self.phys(at.wrapping_add(offset)), *word)?;
        }
        Ok(())
    }

    /// Writes that a record with this header is begun, which a detour does first.
    ///
    /// # Errors
    /// The ring isn't memory.
    pub fn open(&self, memory: &dyn GuestMemory, at: u64, header: u64) -> Result<(), MemoryError> {
        memory.write_u64(self.phys(at), layout::open(header))
    }

    /// Writes the header of a record ([`layout::header`], [`layout::return_header`]), which makes it one.
    ///
    /// # Errors
    /// The ring isn't memory.
    pub fn commit(
        &self,
        memory: &dyn GuestMemory,
        at: u64,
        header: u64,
    ) -> Result<(), MemoryError> {
        memory.write_u64(self.phys(at), header)
    }

    /// Where a position is in physical memory.
    pub fn phys(&self, at: u64) -> GuestPhysAddr {
        self.place.ring.wrapping_add(at % RING_LEN)
    }
}
