//! The kinds of reasons why a probe is no jump.

use guest_kernel::blacklist::Reason;
use vmprobe_proto::v1::{BlacklistKind, NoJumpReason};

use super::blacklist_kind;

/// The engine's words for its own kinds of reasons.
const KINDS: [(&str, NoJumpReason); 32] = [
    ("asked", NoJumpReason::Asked),
    ("switched off", NoJumpReason::SwitchedOff),
    ("disabled", NoJumpReason::Disabled),
    ("no place", NoJumpReason::NoPlace),
    ("watchpoint", NoJumpReason::Watchpoint),
    ("post event", NoJumpReason::PostEvent),
    ("fault event", NoJumpReason::FaultEvent),
    ("own returns", NoJumpReason::OwnReturns),
    ("conditions", NoJumpReason::Conditions),
    ("maxactive", NoJumpReason::Maxactive),
    ("module", NoJumpReason::Module),
    ("milestone", NoJumpReason::Milestone),
    ("probe inside", NoJumpReason::ProbeInside),
    ("guest kprobe", NoJumpReason::GuestKprobe),
    ("guest int3", NoJumpReason::GuestInt3),
    ("branch", NoJumpReason::Branch),
    ("function end", NoJumpReason::FunctionEnd),
    ("exception table", NoJumpReason::ExceptionTable),
    ("bound instruction", NoJumpReason::BoundInstruction),
    ("return address", NoJumpReason::ReturnAddress),
    ("waits", NoJumpReason::Waits),
    ("trap", NoJumpReason::Trap),
    ("undecodable", NoJumpReason::Undecodable),
    ("unreadable", NoJumpReason::Unreadable),
    ("early code", NoJumpReason::EarlyCode),
    ("tripwire", NoJumpReason::Tripwire),
    ("no arena", NoJumpReason::NoArena),
    ("no address", NoJumpReason::NoAddress),
    ("too many", NoJumpReason::TooMany),
    ("no detour", NoJumpReason::NoDetour),
    ("no rings", NoJumpReason::NoRings),
    ("no table", NoJumpReason::NoTable),
];

/// The protocol's form of a kind of reason: what the kernel patches or rules out has a kind of its own.
pub fn no_jump(kind: &str) -> (NoJumpReason, BlacklistKind) {
    let own = KINDS.iter().find(|(word, _)| *word == kind);
    if let Some((_, reason)) = own {
        return (*reason, BlacklistKind::Unspecified);
    }
    match Reason::ALL.iter().find(|reason| reason.kind() == kind) {
        Some(&reason) => (NoJumpReason::Blacklisted, blacklist_kind(reason)),
        None => (NoJumpReason::Unspecified, BlacklistKind::Unspecified),
    }
}

#[cfg(test)]
mod tests {
    use vmprobe_client::words;
    use vmprobe_proto::v1::Optimization;

    use super::*;

    /// The word that a client shows for the engine's word.
    fn shown(word: &str) -> String {
        let (reason, kind) = no_jump(word);
        let told = Optimization {
            reason_kind: reason.into(),
            blacklist_kind: kind.into(),
            ..Optimization::default()
        };
        words::no_jump(&told).to_owned()
    }

    #[test]
    fn a_client_shows_the_engine_s_words() {
        for (word, _) in KINDS {
            assert_eq!(shown(word), word);
        }
        for reason in Reason::ALL {
            assert_eq!(shown(reason.kind()), reason.kind());
        }
    }

    #[test]
    fn every_kind_of_the_protocol_is_one_of_the_engine_s() {
        for reason in (0..).map_while(|value| NoJumpReason::try_from(value).ok()) {
            let other = [NoJumpReason::Unspecified, NoJumpReason::Blacklisted].contains(&reason);
            let known = KINDS.iter().filter(|(_, known)| *known == reason).count();
            assert_eq!(known, usize::from(!other), "{reason:?}");
        }
    }

    #[test]
    fn every_kind_of_a_refusal_is_known() {
        use guest_state::GuestVirtAddr;
        use probe_engine::detour::Refusal as R;

        let at = GuestVirtAddr(1);
        let text = String::new;
        for refusal in [
            R::Branch { at, end: at },
            R::FunctionEnd { end: at },
            R::ExpectsFault { at },
            R::Bound {
                at,
                instruction: text(),
                why: "",
            },
            R::Call { at, returns: at },
            R::Waits {
                instruction: text(),
            },
            R::Trap {
                at,
                instruction: text(),
            },
            R::GuestBreakpoint { at },
            R::Undecodable { at },
            R::EarlyCode,
            R::NoAddress { at },
            R::NoDetour { reason: text() },
        ] {
            assert_ne!(
                no_jump(refusal.kind()).0,
                NoJumpReason::Unspecified,
                "{refusal}"
            );
        }
        assert_eq!(no_jump("nonsense").0, NoJumpReason::Unspecified);
    }
}
