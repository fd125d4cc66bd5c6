//! A jump in the place of a breakpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use guest_state::x86_64::NOP;
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError};

use crate::arena::Placed;
use crate::detour::{Detour, JUMP_LEN, Purpose, Region};
use crate::probe::NoJump;

/// How often vCPUs may come to a jump's tripwires. Each time costs an exit, so where it keeps happening the jump isn't
/// worth it.
const TRIPS: u32 = 1000;

/// Whether a site is to be a jump.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// It hasn't been looked at yet.
    Waiting,
    Jump(Arc<Jump>),
    Not(Arc<NoJump>),
}

/// A jump, and the detour that it leads to.
#[derive(Debug)]
pub(crate) struct Jump {
    pub(crate) region: Region,
    pub(crate) purpose: Arc<Purpose>,
    /// `jmp` to the detour.
    pub(crate) bytes: [u8; JUMP_LEN],
    /// The detour's number.
    pub(crate) number: u32,
    pub(crate) detour: Arc<Detour>,
    trips: AtomicU32,
}

impl Jump {
    pub(crate) fn new(region: Region, purpose: Purpose, placed: Placed) -> Self {
        Self {
            region,
            purpose: Arc::new(purpose),
            bytes: placed.jump,
            number: placed.number,
            detour: placed.detour,
            trips: AtomicU32::new(0),
        }
    }

    /// Bytes of text that it changes.
    pub(crate) fn len(&self) -> usize {
        self.region.bytes.len()
    }

    /// Returns true if a vCPU may come to an int3 in the detour, or in the trampoline for it.
    pub(crate) fn traps(&self) -> bool {
        self.detour.full.is_some() || self.waits_at_return()
    }

    /// Returns true if a vCPU may come to an int3 in the trampoline for this jump.
    pub(crate) fn waits_at_return(&self) -> bool {
        self.purpose.follow.is_some_and(|follow| follow.lossless)
    }

    /// At which offsets from the probed instruction the jump's displacement has an int3.
    pub(crate) fn tripwires(&self) -> impl Iterator<Item = u8> {
        self.region.interior()
    }

    /// Where the copy is of the instruction that began at `offset` of the region.
    pub(crate) fn copy(&self, offset: u8) -> Option<GuestVirtAddr> {
        let (_, at) = self
            .detour
            .copies
            .iter()
            .find(|(from, _)| *from == offset)?;
        Some(self.detour.at.wrapping_add((*at).into()))
    }

    /// The text with the jump in it. What is left of the last instruction becomes `nop`s, so that a decoder of the
    /// function finds instructions.
    fn text(&self) -> Vec<u8> {
        let mut text = vec![NOP; self.len()];
        text[..JUMP_LEN].copy_from_slice(&self.bytes);
        text
    }

    /// Writes the jump, if the text is still the one that was decoded.
    pub(crate) fn plant(
        &self,
        memory: &dyn GuestMemory,
        at: GuestPhysAddr,
    ) -> Result<(), MemoryError> {
        replace(memory, at, &self.region.bytes, &self.text()).map(drop)
    }

    /// Puts the original text back, if the text is still ours. Returns true if it is the original then. Otherwise the
    /// guest has something of its own there, and will put back what it found when it takes that away.
    pub(crate) fn lift(
        &self,
        memory: &dyn GuestMemory,
        at: GuestPhysAddr,
    ) -> Result<bool, MemoryError> {
        replace(memory, at, &self.text(), &self.region.bytes)
    }

    /// Returns true if all of the jump is in the text.
    pub(crate) fn is_planted(&self, memory: &dyn GuestMemory, at: GuestPhysAddr) -> bool {
        let mut text = vec![0; self.len()];
        memory.read(at, &mut text).is_ok() && text == self.text()
    }

    /// Puts original text into `bytes`, which begin at `offset` of the region.
    pub(crate) fn unmask_tail(&self, offset: usize, bytes: &mut [u8]) {
        let (text, original) = (self.text(), &self.region.bytes);
        let tail = text.iter().zip(original).skip(offset);
        for (byte, (ours, original)) in bytes.iter_mut().zip(tail) {
            if byte == ours {
                *byte = *original;
            }
        }
    }

    /// Counts an exit at a tripwire. Returns true if that has happened too often.
    pub(crate) fn trip(&self) -> bool {
        self.trips.fetch_add(1, Ordering::Relaxed) + 1 >= TRIPS
    }

    pub(crate) fn is_tripped(&self) -> bool {
        self.trips.load(Ordering::Relaxed) >= TRIPS
    }
}

/// Writes `to` if the text is `from`. Returns true if the text is `to` then.
fn replace(
    memory: &dyn GuestMemory,
    at: GuestPhysAddr,
    from: &[u8],
    to: &[u8],
) -> Result<bool, MemoryError> {
    let mut text = vec![0; from.len()];
    memory.read(at, &mut text)?;
    if text == from {
        memory.write(at, to)?;
        return Ok(true);
    }
    Ok(text == to)
}
