//! Why a probe stays a breakpoint.

use guest_state::GuestVirtAddr;
use thiserror::Error;

/// Why no jump can take an instruction's place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Each arrival there would cost an exit that nobody has asked for.
    #[error(
        "a branch leads to an instruction that the jump would overwrite, between {at} and {end}"
    )]
    Branch {
        /// The probed instruction.
        at: GuestVirtAddr,
        /// Where the region ends.
        end: GuestVirtAddr,
    },
    /// What comes behind it belongs to another.
    #[error("the function ends at {end}, before a jump's five bytes do")]
    FunctionEnd {
        /// Its end.
        end: GuestVirtAddr,
    },
    /// The kernel changes this text, or rules probes out in it.
    #[error("the jump would overwrite what must not be touched: {reason}")]
    Taken {
        /// One word for it.
        kind: &'static str,
        /// Why, as a clause.
        reason: String,
    },
    /// The kernel looks the address of a fault up.
    #[error("the kernel expects the instruction at {at} to fault there and nowhere else")]
    ExpectsFault {
        /// The instruction.
        at: GuestVirtAddr,
    },
    /// A copy would do something else.
    #[error("`{instruction}` at {at} can't be executed elsewhere: {why}")]
    Bound {
        /// The instruction's address.
        at: GuestVirtAddr,
        /// It in AT&T syntax.
        instruction: String,
        /// Why.
        why: &'static str,
    },
    /// A call's return address would be in what is overwritten.
    #[error(
        "the call at {at} returns to {returns}, which a jump would overwrite; probe the instruction \
         behind the call instead"
    )]
    Call {
        /// The call.
        at: GuestVirtAddr,
        /// Its return address.
        returns: GuestVirtAddr,
    },
    /// `hlt` and `mwait` may rely on the `sti` before them.
    #[error("`{instruction}` may wait only in the shadow of the `sti` before it")]
    Waits {
        /// The instruction in AT&T syntax.
        instruction: String,
    },
    /// It exists to raise an exception at its address.
    #[error("the instruction at {at} is `{instruction}`, which the kernel recognizes by its place")]
    Trap {
        /// Its address.
        at: GuestVirtAddr,
        /// It in AT&T syntax.
        instruction: String,
    },
    /// Somebody else's breakpoint, or an instruction that never was one.
    #[error("there is an int3 of the guest's own at {at}")]
    GuestBreakpoint {
        /// Its address.
        at: GuestVirtAddr,
    },
    /// What is behind the probed instruction isn't known.
    #[error("the bytes at {at} are no instruction")]
    Undecodable {
        /// Their address.
        at: GuestVirtAddr,
    },
    /// It is executed where it is mapped to physical addresses, too, or with another GS base.
    #[error(
        "it runs, or may, while its CPU doesn't have the kernel's address space and per-CPU variables"
    )]
    EarlyCode,
    /// The jump's bytes leave no address for a detour that isn't taken.
    #[error("no free address in the arena fits the bytes that the jump from {at} must have")]
    NoAddress {
        /// The probed instruction.
        at: GuestVirtAddr,
    },
    /// The detour can't be made.
    #[error("its detour can't be made: {reason}")]
    NoDetour {
        /// Why.
        reason: String,
    },
}

impl Refusal {
    /// One word or two, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Branch { .. } => "branch",
            Self::FunctionEnd { .. } => "function end",
            Self::Taken { kind, .. } => kind,
            Self::ExpectsFault { .. } => "exception table",
            Self::Bound { .. } => "bound instruction",
            Self::Call { .. } => "return address",
            Self::Waits { .. } => "waits",
            Self::Trap { .. } => "trap",
            Self::GuestBreakpoint { .. } => "guest int3",
            Self::Undecodable { .. } => "undecodable",
            Self::EarlyCode => "early code",
            Self::NoAddress { .. } => "no address",
            Self::NoDetour { .. } => "no detour",
        }
    }
}
