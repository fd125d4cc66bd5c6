//! A copy of an instruction, or the reason why there is none.

use guest_state::GuestVirtAddr;

/// Why an instruction can't be executed elsewhere, as a user reads it.
pub(crate) type Reason = &'static str;

/// Machine code that does the work of an instruction at another address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Where it has to be. It is right at no other address.
    pub(crate) to: GuestVirtAddr,
    /// At most [`MAX_INSTRUCTION_LEN`](guest_state::x86_64::MAX_INSTRUCTION_LEN) bytes: one instruction.
    pub(crate) bytes: Vec<u8>,
}
