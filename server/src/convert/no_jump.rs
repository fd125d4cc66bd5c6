//! The kinds of reasons why a probe is no jump.

use probe_engine::probe::NoJump;
use vmprobe_proto::v1::{BlacklistKind, NoJumpReason};

use super::blacklist_kind;

/// Returns the protocol's form of a kind of reason. Text that the kernel patches or rules out has a kind of its own.
pub fn no_jump(why: &NoJump) -> (NoJumpReason, BlacklistKind) {
    let kind = match why {
        NoJump::Taken { reason } => {
            return (NoJumpReason::Blacklisted, blacklist_kind(*reason));
        }
        NoJump::Asked => NoJumpReason::Asked,
        NoJump::SwitchedOff => NoJumpReason::SwitchedOff,
        NoJump::Disabled | NoJump::Disarmed => NoJumpReason::Disabled,
        NoJump::NoPlace => NoJumpReason::NoPlace,
        NoJump::Watchpoint => NoJumpReason::Watchpoint,
        NoJump::PostEvent => NoJumpReason::PostEvent,
        NoJump::FaultEvent => NoJumpReason::FaultEvent,
        NoJump::Actions => NoJumpReason::Actions,
        NoJump::Attended => NoJumpReason::Attended,
        NoJump::OwnReturns => NoJumpReason::OwnReturns,
        NoJump::Conditions => NoJumpReason::Conditions,
        NoJump::MaxActive => NoJumpReason::Maxactive,
        NoJump::ValuesTooLong => NoJumpReason::ValuesTooLong,
        NoJump::Module { .. } | NoJump::ModuleStarts => NoJumpReason::Module,
        NoJump::Milestone => NoJumpReason::Milestone,
        NoJump::ProbeInside { .. } => NoJumpReason::ProbeInside,
        NoJump::GuestKprobe { .. } | NoJump::GuestKprobesChange { .. } => NoJumpReason::GuestKprobe,
        NoJump::GuestBreakpoint { .. } => NoJumpReason::GuestInt3,
        NoJump::Branch { .. } => NoJumpReason::Branch,
        NoJump::FunctionEnd { .. } => NoJumpReason::FunctionEnd,
        NoJump::ExpectsFault { .. } => NoJumpReason::ExceptionTable,
        NoJump::Bound { .. } => NoJumpReason::BoundInstruction,
        NoJump::Call { .. } => NoJumpReason::ReturnAddress,
        NoJump::Waits { .. } => NoJumpReason::Waits,
        NoJump::Trap { .. } => NoJumpReason::Trap,
        NoJump::Undecodable { .. } => NoJumpReason::Undecodable,
        NoJump::Unreadable { .. } => NoJumpReason::Unreadable,
        NoJump::EarlyCode => NoJumpReason::EarlyCode,
        NoJump::Tripwire => NoJumpReason::Tripwire,
        NoJump::NoArena { .. } => NoJumpReason::NoArena,
        NoJump::NoAddress { .. } => NoJumpReason::NoAddress,
        NoJump::TooMany { .. } => NoJumpReason::TooMany,
        NoJump::NoDetour { .. } => NoJumpReason::NoDetour,
        NoJump::NoRings { .. } => NoJumpReason::NoRings,
        NoJump::NoCallTable { .. } => NoJumpReason::NoTable,
    };
    (kind, BlacklistKind::Unspecified)
}

#[cfg(test)]
mod tests {
    use guest_kernel::blacklist::Reason;
    use guest_state::GuestVirtAddr;
    use vmprobe_client::words;
    use vmprobe_proto::v1::Optimization;

    use super::*;

    #[test]
    fn a_client_shows_the_engine_s_words() {
        let at = GuestVirtAddr(1);
        let text = String::new;
        let own = [
            NoJump::Asked,
            NoJump::SwitchedOff,
            NoJump::Disabled,
            NoJump::Disarmed,
            NoJump::NoPlace,
            NoJump::Watchpoint,
            NoJump::PostEvent,
            NoJump::FaultEvent,
            NoJump::Actions,
            NoJump::Attended,
            NoJump::OwnReturns,
            NoJump::Conditions,
            NoJump::MaxActive,
            NoJump::ValuesTooLong,
            NoJump::Module { why: "" },
            NoJump::ModuleStarts,
            NoJump::Milestone,
            NoJump::ProbeInside { at },
            NoJump::GuestKprobe { at, region: at..at },
            NoJump::GuestKprobesChange { region: at..at },
            NoJump::GuestBreakpoint { at },
            NoJump::Branch { at, end: at },
            NoJump::FunctionEnd { end: at },
            NoJump::ExpectsFault { at },
            NoJump::Bound {
                at,
                instruction: text(),
                why: "",
            },
            NoJump::Call { at, returns: at },
            NoJump::Waits {
                instruction: text(),
            },
            NoJump::Trap {
                at,
                instruction: text(),
            },
            NoJump::Undecodable { at },
            NoJump::Unreadable { reason: text() },
            NoJump::EarlyCode,
            NoJump::Tripwire,
            NoJump::NoArena { reason: text() },
            NoJump::NoAddress { reason: text() },
            NoJump::TooMany { reason: text() },
            NoJump::NoDetour { reason: text() },
            NoJump::NoRings { reason: text() },
            NoJump::NoCallTable { reason: text() },
        ];
        let listed = Reason::ALL.iter().map(|&reason| NoJump::Taken { reason });
        // Only older servers give this one.
        let mut kinds = vec![NoJumpReason::ValuesAtReturn];
        for why in own.into_iter().chain(listed) {
            let (reason, kind) = no_jump(&why);
            kinds.push(reason);
            let told = Optimization {
                reason_kind: reason.into(),
                blacklist_kind: kind.into(),
                ..Optimization::default()
            };
            assert_eq!(words::no_jump(&told), why.kind());
        }
        let mut all = (1..).map_while(|value| NoJumpReason::try_from(value).ok());
        assert!(all.all(|reason| kinds.contains(&reason)));
    }
}
