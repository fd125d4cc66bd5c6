//! The guest's memory as words and as zeroes.

use guest_state::{GuestMemory, GuestPhysAddr, MemoryError};

/// How much is read or written at a time, in bytes: little enough to stay in the CPU's nearest caches.
pub const CHUNK: usize = 32 << 10;

/// Zeroes, which are all that is ever written over what was read.
static ZEROES: [u8; CHUNK] = [0; CHUNK];

/// The pieces of a stretch of memory, from offset 0: where each begins, and its length.
fn pieces(len: u64) -> impl Iterator<Item = (u64, usize)> {
    let piece = move |start: u64| (start, (len - start).min(CHUNK as u64) as usize);
    (0..len).step_by(CHUNK).map(piece)
}

pub fn clear(memory: &dyn GuestMemory, at: GuestPhysAddr, len: u64) -> Result<(), MemoryError> {
    for (start, len) in pieces(len) {
        memory.write(at.wrapping_add(start), &ZEROES[..len])?;
    }
    Ok(())
}

/// Clears what isn't zero: memory that was never used needs no page of the host's for that.
pub fn clear_used(
    memory: &dyn GuestMemory,
    at: GuestPhysAddr,
    len: u64,
) -> Result<(), MemoryError> {
    let mut piece = vec![0; CHUNK];
    for (start, len) in pieces(len) {
        let at = at.wrapping_add(start);
        memory.read(at, &mut piece[..len])?;
        if piece[..len] != ZEROES[..len] {
            memory.write(at, &ZEROES[..len])?;
        }
    }
    Ok(())
}
