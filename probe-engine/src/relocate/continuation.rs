//! What a copy does next.

use guest_state::GuestVirtAddr;
use guest_state::x86_64::{NOP, jmp_rel32};

use super::copied::{Copied, Reason};

/// Returns the copy, a `nop`, and a jump to `next`. An int3 in the place of the `nop` tells when the copy is done. A
/// task that is in the copy while one replaces the other executes either, and both are right.
///
/// # Errors
/// `next` is more than 2 GiB away.
pub(crate) fn passing(copied: &Copied, next: GuestVirtAddr) -> Result<Vec<u8>, Reason> {
    let mut code = copied.bytes.clone();
    code.push(NOP);
    let at = copied.to.wrapping_add(code.len() as u64);
    code.extend(jmp_rel32(at, next).ok_or("the instruction after it is out of a jump's reach")?);
    Ok(code)
}
