//! Scripts that complete the words of a command line.

use clap::Command;
pub use clap_complete::Shell;

/// Returns the script for a shell, of all subcommands and options that are not hidden.
#[must_use]
pub fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ValueEnum};

    use super::*;

    #[test]
    fn the_script_of_each_shell_names_subcommands_and_options() {
        let command = || {
            let deep = Command::new("deep").arg(Arg::new("far").long("far"));
            Command::new("tool").subcommand(Command::new("outer").subcommand(deep))
        };
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completions(command(), *shell)).unwrap();
            for word in ["tool", "outer", "deep", "far"] {
                assert!(script.contains(word), "{word} for {shell}: {script}");
            }
        }
    }
}
