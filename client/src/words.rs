//! The protocol's values in words, as the command line shows them.

use vmprobe_proto::v1::{BlacklistKind, Ending, EndingKind, NoJumpReason, Optimization};

/// Returns how a guest ended, such as `power-off` or `panic (exit 101): Attempted to kill init!`.
#[must_use]
pub fn ending(ending: &Ending) -> String {
    let mut text = ending_kind(ending).to_owned();
    if ending.exit_code != 0 {
        text += &format!(" (exit {})", ending.exit_code);
    }
    if !ending.detail.is_empty() {
        text += ": ";
        text += &ending.detail;
    }
    text
}

/// Returns how a guest ended, in a word or two.
#[must_use]
pub fn ending_kind(ending: &Ending) -> &'static str {
    match ending.kind() {
        EndingKind::PowerOff => "power-off",
        EndingKind::Reset => "reset",
        EndingKind::Panic => "panic",
        EndingKind::TripleFault => "triple fault",
        EndingKind::Killed => "killed",
        EndingKind::Failed => "failed",
        EndingKind::Unspecified => "ended",
    }
}

/// Returns why a probe is no jump, in a word or two for counting. Empty if it is a jump, or the reason isn't known yet.
#[must_use]
pub fn no_jump(optimization: &Optimization) -> &'static str {
    match optimization.reason_kind() {
        NoJumpReason::Unspecified => "",
        NoJumpReason::Asked => "asked",
        NoJumpReason::SwitchedOff => "switched off",
        NoJumpReason::Disabled => "disabled",
        NoJumpReason::NoPlace => "no place",
        NoJumpReason::Watchpoint => "watchpoint",
        NoJumpReason::PostEvent => "post event",
        NoJumpReason::FaultEvent => "fault event",
        NoJumpReason::Actions => "actions",
        NoJumpReason::Attended => "attended",
        NoJumpReason::OwnReturns => "own returns",
        NoJumpReason::Conditions => "conditions",
        NoJumpReason::Maxactive => "maxactive",
        NoJumpReason::ValuesTooLong => "values too long",
        NoJumpReason::ValuesAtReturn => "values at return",
        NoJumpReason::Module => "module",
        NoJumpReason::Milestone => "milestone",
        NoJumpReason::ProbeInside => "probe inside",
        NoJumpReason::GuestKprobe => "guest kprobe",
        NoJumpReason::GuestInt3 => "guest int3",
        NoJumpReason::Blacklisted => blacklist_kind(optimization.blacklist_kind()),
        NoJumpReason::Branch => "branch",
        NoJumpReason::FunctionEnd => "function end",
        NoJumpReason::ExceptionTable => "exception table",
        NoJumpReason::BoundInstruction => "bound instruction",
        NoJumpReason::ReturnAddress => "return address",
        NoJumpReason::Waits => "waits",
        NoJumpReason::Trap => "trap",
        NoJumpReason::Undecodable => "undecodable",
        NoJumpReason::Unreadable => "unreadable",
        NoJumpReason::EarlyCode => "early code",
        NoJumpReason::Tripwire => "tripwire",
        NoJumpReason::NoArena => "no arena",
        NoJumpReason::NoAddress => "no address",
        NoJumpReason::TooMany => "too many",
        NoJumpReason::NoDetour => "no detour",
        NoJumpReason::NoRings => "no rings",
        NoJumpReason::NoTable => "no table",
    }
}

/// Returns the kind of text that can't be probed, in one word.
#[must_use]
pub fn blacklist_kind(kind: BlacklistKind) -> &'static str {
    match kind {
        BlacklistKind::Unspecified => "unknown",
        BlacklistKind::Noinstr => "noinstr",
        BlacklistKind::Entry => "entry",
        BlacklistKind::Kprobes => "kprobes",
        BlacklistKind::Blacklist => "blacklist",
        BlacklistKind::Copied => "copied",
        BlacklistKind::Ftrace => "ftrace",
        BlacklistKind::FtraceTrampoline => "ftrace-trampoline",
        BlacklistKind::JumpLabel => "jump-label",
        BlacklistKind::StaticCall => "static-call",
        BlacklistKind::StaticCallTrampoline => "static-call-trampoline",
        BlacklistKind::SmpLock => "smp-lock",
        BlacklistKind::Alternative => "alternative",
        BlacklistKind::Paravirt => "paravirt",
        BlacklistKind::Retpoline => "retpoline",
        BlacklistKind::ReturnThunk => "return-thunk",
        BlacklistKind::CallThunk => "call-thunk",
        BlacklistKind::EndbrSeal => "endbr-seal",
        BlacklistKind::Cfi => "cfi",
        BlacklistKind::RuntimeConst => "runtime-const",
        BlacklistKind::Bug => "bug",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_says_kind_exit_code_and_detail() {
        let mut end = Ending::default();
        end.set_kind(EndingKind::PowerOff);
        assert_eq!(ending(&end), "power-off");
        end.set_kind(EndingKind::Panic);
        end.exit_code = 101;
        end.detail = "no init found".into();
        assert_eq!(ending(&end), "panic (exit 101): no init found");
    }
}
