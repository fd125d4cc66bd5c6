//! The arguments as clap sees them.

use super::*;
use clap::CommandFactory;

#[test]
fn the_arguments_are_consistent() {
    Cli::command().debug_assert();
}

/// Commands whose standard output is the guest's, or is made for another program.
const OTHERS_OUTPUT: [&str; 5] = ["ci-job", "completions", "console", "manual", "run"];
/// Commands that print nothing: their exit code says it all.
const SILENT: [&str; 8] = [
    "arm", "delete", "disarm", "kill", "pause", "remove", "resume", "start",
];
/// Commands whose `--output` is the file that they write.
const WITH_A_FILE: [&str; 3] = ["dump", "flame", "record"];

/// Tells of each command below that does something by itself whether it prints JSON.
fn formats(command: &clap::Command, told: &mut Vec<(String, bool)>) {
    for below in command.get_subcommands() {
        match below.has_subcommands() {
            true => formats(below, told),
            false => {
                let mut values = below
                    .get_arguments()
                    .filter(|argument| argument.get_id() == "output")
                    .flat_map(clap::Arg::get_possible_values);
                let prints_json = values.any(|value| value.get_name() == "json");
                told.push((below.get_name().to_owned(), prints_json));
            }
        }
    }
}

#[test]
fn each_command_that_prints_what_it_has_found_prints_json() {
    let mut told = Vec::new();
    formats(&Cli::command(), &mut told);
    assert!(told.len() > 30, "{told:?}");
    for (name, prints_json) in told {
        let others = [&OTHERS_OUTPUT[..], &SILENT, &WITH_A_FILE].concat();
        assert_ne!(prints_json, others.contains(&&*name), "{name}");
    }
}

#[test]
fn symbols_wants_a_pattern_or_an_address_but_not_both() {
    let parse = |more: &[&str]| Cli::try_parse_from([&["vmprobe", "symbols"], more].concat());
    assert!(parse(&["vfs_*"]).is_ok());
    assert!(parse(&["--address", "ffffffff81000000"]).is_ok());
    assert!(parse(&[]).is_err());
    assert!(parse(&["vfs_*", "--address", "0x1"]).is_err());
}
