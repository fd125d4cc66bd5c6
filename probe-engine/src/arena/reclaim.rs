//! Which parts of the arena a task might still be in.

use std::collections::HashSet;
use std::hash::Hash;

use guest_state::{GuestMemory, GuestVirtAddr, MemoryError, PhysRange};

/// How much memory is read at a time, in bytes.
const CHUNK: usize = 1 << 16;

/// Returns all that an instruction pointer or any aligned word of memory points into; `what` tells what is at an
/// address.
pub(super) fn mentioned<T: Eq + Hash>(
    memory: &dyn GuestMemory,
    ram: &[PhysRange],
    rips: &[u64],
    what: impl Fn(GuestVirtAddr) -> Option<T>,
) -> Result<HashSet<T>, MemoryError> {
    let number = |word: u64| what(GuestVirtAddr(word));
    let mut found: HashSet<_> = rips.iter().copied().filter_map(number).collect();
    let mut buffer = vec![0; CHUNK];
    for PhysRange { start, len } in ram {
        let mut done = 0;
        while done < *len {
            let at = start.wrapping_add(done);
            let left = usize::try_from(*len - done).unwrap_or(usize::MAX);
            let chunk = &mut buffer[..CHUNK.min(left)];
            memory.read(at, chunk)?;
            let (words, _) = chunk.as_chunks();
            found.extend(
                words
                    .iter()
                    .copied()
                    .map(u64::from_le_bytes)
                    .filter_map(number),
            );
            done += chunk.len() as u64;
        }
    }
    Ok(found)
}
