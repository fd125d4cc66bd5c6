//! What a detour does to a ring, without a guest, and records as they were read there.

use guest_kernel::context::TaskContext;
use guest_state::{GuestMemory, GuestPhysAddr, MemoryError, Registers, Tsc, VcpuId};

use super::layout::{self, RING_LEN};
use super::{Record, VcpuMemory};
use crate::value::Recorded;

/// Writes records into one vCPU's ring, as code on that vCPU does.
#[derive(Debug, Clone, Copy)]
pub struct Producer {
    /// The vCPU's block and ring.
    pub place: VcpuMemory,
}

impl Producer {
    /// Reserves space for a record of `words` words; `None` if the ring is full.
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

    /// Writes a record's header as that of an unfinished one, which a detour does first.
    ///
    /// # Errors
    /// The ring isn't memory.
    pub fn open(&self, memory: &dyn GuestMemory, at: u64, header: u64) -> Result<(), MemoryError> {
        memory.write_u64(self.phys(at), layout::open(header))
    }

    /// Writes the header of a record ([`layout::header`], [`layout::return_header`]), which makes it whole.
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

    /// Returns the physical address of a position.
    pub fn phys(&self, at: u64) -> GuestPhysAddr {
        self.place.ring.wrapping_add(at % RING_LEN)
    }
}

/// All that a record tells, to be kept: see [`Record`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// The vCPU in whose ring it was.
    pub vcpu: VcpuId,
    /// The detour's number.
    pub detour: u32,
    /// When it was written.
    pub tsc: Tsc,
    /// The current task.
    pub task: u64,
    /// Its registers.
    pub registers: Registers,
    /// What the current task was.
    pub context: Option<TaskContext>,
    /// Its values.
    pub values: Recorded,
    /// The call, if it is of a return.
    pub call: Option<ToldCall>,
}

/// What the record of a return tells of its call: see [`super::Returned`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldCall {
    /// Where it was made from.
    pub caller: u64,
    /// When it began.
    pub entry_tsc: Tsc,
    /// The registers at its beginning.
    pub entry: Registers,
}

impl From<Record<'_>> for Told {
    fn from(record: Record<'_>) -> Self {
        Self {
            vcpu: record.vcpu,
            detour: record.detour,
            tsc: record.tsc,
            task: record.task,
            registers: record.registers(),
            context: record.context(),
            values: record.values.to_boxed(),
            call: record.call.as_ref().map(|call| ToldCall {
                caller: call.caller,
                entry_tsc: call.entry_tsc,
                entry: call.entry(),
            }),
        }
    }
}
