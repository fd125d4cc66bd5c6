//! The protocol's values in words, as the command line shows them.

use vmprobe_proto::v1::{Ending, EndingKind};

/// How a guest ended, such as `power-off` or `panic (exit 101): Attempted to kill init!`.
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

/// How a guest ended, in a word or two.
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
