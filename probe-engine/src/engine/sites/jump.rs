//! A jump in the place of a breakpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use guest_state::x86_64::NOP;
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError};

use crate::arena::Placed;
use crate::detour::{Detour, JUMP_LEN, Purpose, Region};
use crate::probe::NoJump;

/// So many times may somebody come to one of a jump's tripwires. Each costs an exit, so where it keeps
/// happening the jump isn't worth it.
const TRIPS: u32 = 1000;

/// Whether a site is to be a jump.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// Nobody has looked yet.
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

    /// Whether the detour, or the trampoline for it, may come to an int3.
    pub(crate) fn traps(&self) -> bool {
        self.detour.full.is_some() || self.waits_at_return()
    }

    /// Whether the trampoline may come to an int3 for it.
    pub(crate) fn waits_at_return(&self) -> bool {
        self.purpose.follow.is_some_and(|follow| follow.lossless)
    }

    /// Where from the probed instruction its displacement has an int3.
    pub(crate) fn tripwires(&self) -> impl Iterator<Item = u8> {
        self.region.interior()
    }

    /// Where the instruction is executed that began at `offset` of the region.
    pub(crate) fn copy(&self, offset: u8) -> Option<GuestVirtAddr> {
        let (_, at) = self
            .detour
            .copies
            .iter()
            .find(|(from, _)| *from == offset)?;
        Some(self.detour.at.wrapping_add((*at).into()))
    }

    /// The text with the jump in it. What is left of the last instruction becomes `nop`s, so that who
    /// decodes the function finds instructions.
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

    /// Puts the original text back, if the text is still ours. Whether it is the original then; else the
    /// guest has something of its own there, and will put back what it found when it takes that away.
    pub(crate) fn lift(
        &self,
        memory: &dyn GuestMemory,
        at: GuestPhysAddr,
    ) -> Result<bool, MemoryError> {
        replace(memory, at, &self.text(), &self.region.bytes)
    }

    /// Whether all of it is in the text.
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

    /// Somebody has come to a tripwire. Whether that has happened too often.
    pub(crate) fn trip(&self) -> bool {
        self.trips.fetch_add(1, Ordering::Relaxed) + 1 >= TRIPS
    }

    pub(crate) fn is_tripped(&self) -> bool {
        self.trips.load(Ordering::Relaxed) >= TRIPS
    }
}

/// Whether the text is `to` then.
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
