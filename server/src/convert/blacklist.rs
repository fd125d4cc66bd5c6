//! The kinds of text that can't be probed.

use guest_kernel::blacklist::Reason;
use vmprobe_proto::v1::BlacklistKind;

/// Returns the protocol's form of the reason why a place can't be probed.
pub fn blacklist_kind(reason: Reason) -> BlacklistKind {
    match reason {
        Reason::Noinstr => BlacklistKind::Noinstr,
        Reason::EntryText => BlacklistKind::Entry,
        Reason::KprobesText => BlacklistKind::Kprobes,
        Reason::KprobeBlacklist => BlacklistKind::Blacklist,
        Reason::CopiedText => BlacklistKind::Copied,
        Reason::FtraceSite => BlacklistKind::Ftrace,
        Reason::FtraceTrampoline => BlacklistKind::FtraceTrampoline,
        Reason::JumpLabel => BlacklistKind::JumpLabel,
        Reason::StaticCall => BlacklistKind::StaticCall,
        Reason::StaticCallTrampoline => BlacklistKind::StaticCallTrampoline,
        Reason::SmpLock => BlacklistKind::SmpLock,
        Reason::Alternative => BlacklistKind::Alternative,
        Reason::Paravirt => BlacklistKind::Paravirt,
        Reason::Retpoline => BlacklistKind::Retpoline,
        Reason::ReturnThunk => BlacklistKind::ReturnThunk,
        Reason::CallThunk => BlacklistKind::CallThunk,
        Reason::EndbrSeal => BlacklistKind::EndbrSeal,
        Reason::Cfi => BlacklistKind::Cfi,
        Reason::RuntimeConst => BlacklistKind::RuntimeConst,
        Reason::Bug => BlacklistKind::Bug,
        // A test fails if a reason has no kind.
        _ => BlacklistKind::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use vmprobe_client::words;

    #[test]
    fn every_reason_has_a_kind_of_its_own_and_a_client_shows_its_word() {
        let mut kinds = BTreeSet::new();
        for reason in Reason::ALL {
            let kind = blacklist_kind(reason);
            assert_eq!(words::blacklist_kind(kind), reason.kind());
            kinds.insert(i32::from(kind));
        }
        assert_eq!(kinds.len(), Reason::ALL.len());
    }
}
