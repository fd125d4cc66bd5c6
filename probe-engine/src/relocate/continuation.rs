//! What a copy does next.

use guest_state::GuestVirtAddr;
use guest_state::x86_64::{JMP_REL32, NOP};

use super::{Copied, Reason};

/// Bytes of `jmp rel32`.
const JMP_LEN: usize = 5;

/// The copy, a `nop`, and a jump to `next`. An int3 in the place of the `nop` tells when the copy is
/// done; whoever is in the copy while the one becomes the other executes either, and both are right.
///
/// # Errors
/// `next` is more than 2 GiB away.
pub(crate) fn passing(copied: &Copied, next: GuestVirtAddr) -> Result<Vec<u8>, Reason> {
    let len = copied.bytes.len() + 1 + JMP_LEN;
    let by = next.0.wrapping_sub(copied.to.wrapping_add(len as u64).0);
    let by = i32::try_from(by.cast_signed())
        .map_err(|_| "the instruction after it is out of a jump's reach")?;
    let mut code = copied.bytes.clone();
    code.push(NOP);
    code.push(JMP_REL32);
    code.extend(by.to_le_bytes());
    Ok(code)
}
