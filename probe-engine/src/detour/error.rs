//! Why there is no detour for a region.

use guest_state::GuestVirtAddr;
use iced_x86::IcedError;

/// Why there is no detour for a region.
#[derive(Debug, thiserror::Error)]
pub enum DetourError {
    /// An instruction has to stay where it is.
    #[error("the instruction at {at} can't be executed elsewhere: {reason}")]
    Bound {
        /// The instruction.
        at: GuestVirtAddr,
        /// Why so.
        reason: &'static str,
    },
    /// A call in the region returns to where the jump is.
    #[error("the call at {at} returns into the bytes that the jump takes")]
    ReturnsInside {
        /// The call.
        at: GuestVirtAddr,
    },
    /// A call's return address isn't a sign-extended number of 32 bits, as all addresses of a
    /// kernel's text are.
    #[error("the call at {at} has a return address that can't be pushed")]
    ReturnAddress {
        /// The call.
        at: GuestVirtAddr,
    },
    /// A branch in the region leads into the middle of one of its instructions.
    #[error("the branch at {at} leads into an instruction that the jump takes")]
    IntoInstruction {
        /// The branch.
        at: GuestVirtAddr,
    },
    /// Where execution goes on, or a branch leads, is more than 2 GiB away from the detour.
    #[error("what the region at {at} leads to is out of a jump's reach from {detour}")]
    OutOfReach {
        /// The region.
        at: GuestVirtAddr,
        /// The detour.
        detour: GuestVirtAddr,
    },
    /// The probe's condition or record needs a variable of the kernel that isn't known.
    #[error("the kernel's `{name}` isn't known, or not where code can reach it")]
    Unknown {
        /// The variable or the member.
        name: &'static str,
    },
    /// A pattern that is too long for a detour.
    #[error("a pattern as long as the filter's is matched at a breakpoint only")]
    Pattern,
    /// The region's bytes aren't the instructions that it lists.
    #[error("the region at {at} isn't made of whole instructions")]
    Region {
        /// The region.
        at: GuestVirtAddr,
    },
    /// The code can't be encoded.
    #[error("the detour's code can't be encoded")]
    Encoding(#[from] IcedError),
}
