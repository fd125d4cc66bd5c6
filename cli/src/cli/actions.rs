//! The arguments for what probes do to the guest.

use clap::Args;
use vmprobe_client::spec::actions;
use vmprobe_client::v1::Action;

/// What is done at each hit, before the instruction: registers first, then memory, then the function.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Changing the guest (the server needs --allow-changes)")]
pub struct ActionArgs {
    /// Set a register at each hit, such as rdi=5 or rip=0xffffffff81000000; the probed instruction sees it
    /// (repeatable)
    #[arg(long, value_name = "REGISTER=VALUE", value_parser = actions::set)]
    pub set: Vec<Action>,
    /// Write memory at each hit, such as rdi+0x10=0a0b (bytes in hexadecimal; repeatable). What the kernel
    /// itself could not write is left alone
    #[arg(long, value_name = "ADDRESS=BYTES", value_parser = actions::write)]
    pub write: Vec<Action>,
    /// Return this value in the function's place: the function isn't executed, so what it would have locked,
    /// counted, allocated or freed isn't either. A return probe replaces what the function has returned
    #[arg(long = "override", value_name = "VALUE", allow_hyphen_values = true, value_parser = actions::override_return)]
    pub override_return: Option<Action>,
    /// Pause the VM at each hit, until `vmprobe vm resume`; needs no --allow-changes
    #[arg(long)]
    pub pause: bool,
}

impl ActionArgs {
    /// Returns the actions, in their order.
    pub fn actions(&self) -> Vec<Action> {
        let pause = self.pause.then(actions::pause);
        let changes = self.set.iter().chain(&self.write);
        let changes = changes.chain(&self.override_return).cloned();
        changes.chain(pause).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        actions: ActionArgs,
    }

    fn texts(words: &[&str]) -> Vec<String> {
        let line = Line::try_parse_from([&["x"], words].concat()).unwrap();
        line.actions.actions().iter().map(actions::text).collect()
    }

    #[test]
    fn registers_come_first_and_the_pause_last() {
        let words = [
            "--pause",
            "--override",
            "-1",
            "--write",
            "rdi=0a",
            "--set",
            "rsi=2",
            "--set",
            "rdi=3",
        ];
        let expected = [
            "set rsi=0x2",
            "set rdi=0x3",
            "write rdi=0a",
            "override -1",
            "pause",
        ];
        assert_eq!(texts(&words), expected);
        assert!(texts(&[]).is_empty());
    }

    #[test]
    fn the_help_says_what_an_override_does_to_the_guest() {
        use clap::CommandFactory;

        let help = Line::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("the function isn't executed"), "{help}");
        assert!(help.contains("--allow-changes"), "{help}");
    }
}
