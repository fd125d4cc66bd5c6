//! Why a probe stays a breakpoint.

use std::ops::Range;

use guest_kernel::blacklist::Reason;
use guest_state::GuestVirtAddr;
use thiserror::Error;

/// Why a probe isn't a jump. [`NoJump::kind`] is one word or two for it; the message is the reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoJump {
    /// Each task that comes there by the branch would cost an exit that isn't a hit.
    #[error(
        "a branch leads to an instruction that the jump would overwrite, between {at} and {end}"
    )]
    Branch {
        /// The probed instruction.
        at: GuestVirtAddr,
        /// Where the region ends.
        end: GuestVirtAddr,
    },
    /// The text behind the function belongs to another one.
    #[error("the function ends at {end}, before a jump's five bytes do")]
    FunctionEnd {
        /// Its end.
        end: GuestVirtAddr,
    },
    /// The kernel changes this text, or rules probes out in it.
    #[error("the jump would overwrite what must not be touched: {reason}")]
    Taken {
        /// What it is.
        reason: Reason,
    },
    /// The kernel looks up the address of a fault.
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
    /// The instruction exists to raise an exception at its address.
    #[error("the instruction at {at} is `{instruction}`, which the kernel recognizes by its place")]
    Trap {
        /// Its address.
        at: GuestVirtAddr,
        /// It in AT&T syntax.
        instruction: String,
    },
    /// A breakpoint of the guest's own, or an int3 that has always been there.
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
    /// The text around the probe can't be read.
    #[error("{reason}")]
    Unreadable {
        /// Why.
        reason: String,
    },
    /// The probe has no place, as its module isn't loaded.
    #[error("it has no place in the guest's text")]
    NoPlace,
    /// All probes there are disabled.
    #[error("it is disabled")]
    Disabled,
    /// Nothing is armed there.
    #[error("it is not armed")]
    Disarmed,
    /// No probe of the VM may be a jump.
    #[error("jumps are switched off")]
    SwitchedOff,
    /// The probe's options say so.
    #[error("it was asked to stay a breakpoint")]
    Asked,
    /// A probe there has post events.
    #[error("a post event takes a breakpoint")]
    PostEvent,
    /// A probe there has fault events.
    #[error("a fault event takes a breakpoint")]
    FaultEvent,
    /// A probe there has actions.
    #[error("an action takes a breakpoint")]
    Actions,
    /// A client is asked at each hit of a probe there.
    #[error("a client that is asked at each hit takes a breakpoint")]
    Attended,
    /// A probe of a function's own returns.
    #[error("a probe of the function's own returns takes breakpoints")]
    OwnReturns,
    /// A watchpoint.
    #[error("it is no instruction")]
    Watchpoint,
    /// The engine has a breakpoint of its own there.
    #[error("the engine itself follows the kernel by a breakpoint here")]
    Milestone,
    /// A reason that there is only in modules.
    #[error("it is in a module's text, and {why}")]
    Module {
        /// What is in the way, as a clause.
        why: &'static str,
    },
    /// A module's text is settled when its init text is freed.
    #[error("its module is being loaded or unloaded")]
    ModuleStarts,
    /// A detour checks the conditions of one probe only.
    #[error("another probe is at the same instruction, with other conditions")]
    Conditions,
    /// A detour has one limit of followed calls.
    #[error("another return probe of the function has another limit of calls")]
    MaxActive,
    /// A record has no room for what the probes ask for.
    #[error("its values and registers may be longer than a record")]
    ValuesTooLong,
    /// A breakpoint in the bytes that the jump would overwrite.
    #[error("another breakpoint is inside what a jump overwrites, at {at}")]
    ProbeInside {
        /// Its address.
        at: GuestVirtAddr,
    },
    /// The guest has a kprobe of its own in the bytes that the jump would overwrite.
    #[error("the guest has a kprobe of its own in what the jump would overwrite, at {at}")]
    GuestKprobe {
        /// Its address.
        at: GuestVirtAddr,
        /// What the jump would overwrite.
        region: Range<GuestVirtAddr>,
    },
    /// It can't be told where the guest's kprobes are.
    #[error("the guest is changing its own kprobes and doesn't come to an end")]
    GuestKprobesChange {
        /// What the jump would overwrite.
        region: Range<GuestVirtAddr>,
    },
    /// There was a jump, and its tripwires cost too many exits.
    #[error("the guest kept coming to the middle of what the jump overwrites")]
    Tripwire,
    /// The guest has no memory of ours.
    #[error("{reason}")]
    NoArena {
        /// Why.
        reason: String,
    },
    /// There are no rings to leave records in.
    #[error("{reason}")]
    NoRings {
        /// Why.
        reason: String,
    },
    /// There is no table of calls for return probes.
    #[error("{reason}")]
    NoCallTable {
        /// Why.
        reason: String,
    },
    /// The jump's bytes leave no address for a detour that isn't taken.
    #[error("{reason}")]
    NoAddress {
        /// Which addresses are taken.
        reason: String,
    },
    /// There are as many detours as there can be.
    #[error("{reason}")]
    TooMany {
        /// How many those are.
        reason: String,
    },
    /// The detour can't be made.
    #[error("{reason}")]
    NoDetour {
        /// Why.
        reason: String,
    },
}

impl NoJump {
    /// One word or two, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Branch { .. } => "branch",
            Self::FunctionEnd { .. } => "function end",
            Self::Taken { reason } => reason.kind(),
            Self::ExpectsFault { .. } => "exception table",
            Self::Bound { .. } => "bound instruction",
            Self::Call { .. } => "return address",
            Self::Waits { .. } => "waits",
            Self::Trap { .. } => "trap",
            Self::GuestBreakpoint { .. } => "guest int3",
            Self::Undecodable { .. } => "undecodable",
            Self::EarlyCode => "early code",
            Self::Unreadable { .. } => "unreadable",
            Self::NoPlace => "no place",
            Self::Disabled | Self::Disarmed => "disabled",
            Self::SwitchedOff => "switched off",
            Self::Asked => "asked",
            Self::PostEvent => "post event",
            Self::FaultEvent => "fault event",
            Self::Actions => "actions",
            Self::Attended => "attended",
            Self::OwnReturns => "own returns",
            Self::Watchpoint => "watchpoint",
            Self::Milestone => "milestone",
            Self::Module { .. } | Self::ModuleStarts => "module",
            Self::Conditions => "conditions",
            Self::MaxActive => "maxactive",
            Self::ValuesTooLong => "values too long",
            Self::ProbeInside { .. } => "probe inside",
            Self::GuestKprobe { .. } | Self::GuestKprobesChange { .. } => "guest kprobe",
            Self::Tripwire => "tripwire",
            Self::NoArena { .. } => "no arena",
            Self::NoRings { .. } => "no rings",
            Self::NoCallTable { .. } => "no table",
            Self::NoAddress { .. } => "no address",
            Self::TooMany { .. } => "too many",
            Self::NoDetour { .. } => "no detour",
        }
    }

    /// Returns true if the probe may become a jump as soon as other probes, or the guest's own, come or go.
    pub(crate) fn for_now(&self) -> bool {
        match self {
            Self::NoPlace
            | Self::Disabled
            | Self::Disarmed
            | Self::SwitchedOff
            | Self::Asked
            | Self::PostEvent
            | Self::FaultEvent
            | Self::Actions
            | Self::Attended
            | Self::OwnReturns
            | Self::Watchpoint
            | Self::Milestone
            | Self::ModuleStarts
            | Self::Conditions
            | Self::MaxActive
            | Self::ValuesTooLong
            | Self::ProbeInside { .. }
            | Self::GuestBreakpoint { .. }
            | Self::GuestKprobe { .. }
            | Self::GuestKprobesChange { .. }
            | Self::TooMany { .. } => true,
            Self::Branch { .. }
            | Self::FunctionEnd { .. }
            | Self::Taken { .. }
            | Self::ExpectsFault { .. }
            | Self::Bound { .. }
            | Self::Call { .. }
            | Self::Waits { .. }
            | Self::Trap { .. }
            | Self::Undecodable { .. }
            | Self::EarlyCode
            | Self::Unreadable { .. }
            | Self::Module { .. }
            | Self::Tripwire
            | Self::NoArena { .. }
            | Self::NoRings { .. }
            | Self::NoCallTable { .. }
            | Self::NoAddress { .. }
            | Self::NoDetour { .. } => false,
        }
    }

    /// Returns true if there might be a jump without the detours that removed probes have left.
    pub(crate) fn is_crowded(&self) -> bool {
        matches!(self, Self::NoAddress { .. } | Self::TooMany { .. })
    }

    /// Returns where the guest itself is in the way: the probe may become a jump as soon as the guest has no kprobe in
    /// these bytes any more, nor a breakpoint at their start.
    pub(crate) fn guest_in(&self) -> Option<Range<GuestVirtAddr>> {
        match self {
            Self::GuestBreakpoint { at } => Some(*at..at.wrapping_add(1)),
            Self::GuestKprobe { region, .. } | Self::GuestKprobesChange { region } => {
                Some(region.clone())
            }
            _ => None,
        }
    }
}
