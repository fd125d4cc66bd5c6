//! What a copy does next.

use super::{Copied, Reason};
use crate::addr::GuestVirtAddr;

/// `nop`
const NOP: u8 = 0x90;
/// `jmp rel32`
const JMP: u8 = 0xe9;
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
    code.push(JMP);
    code.extend(by.to_le_bytes());
    Ok(code)
}
