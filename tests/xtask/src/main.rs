//! `xtask test` runs every test there is, `xtask demo` the demonstration, `xtask bench` the measurements, `xtask
//! pictures` the pictures of the docs: on this machine if its KVM runs Linux, otherwise in the lab. `xtask soak` runs
//! random clients against a server and its guests, on this machine. `make test`, `make demo`, `make bench`, `make
//! pictures` and `make soak` run these.

mod bench;
mod command;
mod deb;
mod demo;
mod drgn;
mod examples;
mod files;
mod gdb;
#[cfg(test)]
mod imports;
mod jobs;
mod labs;
#[cfg(test)]
mod layering;
mod lines;
mod machine;
mod microvm;
mod nats;
mod passt;
mod pictures;
mod prometheus;
mod python;
mod record;
mod repack;
mod requirements;
mod root_files;
mod soak;
mod test;
mod victoria_metrics;

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's tests and its demonstration.
#[derive(Debug, Parser)]
#[command(name = "xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run all tests; the last line is `N passed, N failed, N skipped`.
    Test(test::Options),
    /// Boot a stock kernel and watch its probes; the last line is `demo: ...`.
    Demo,
    /// Have clients do anything at random with a server and two guests; the last line says what it came to.
    Soak(soak::Options),
    /// Draw the pictures of docs/pictures from a demonstration.
    Pictures,
    /// Measure; the figures are in target/bench/report.json.
    Bench(bench::Options),
    /// Make the Debian package target/deb/vmprobe.deb.
    Deb(deb::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Test(options) => test::run(&options).map_err(|e| chain(&e)),
        Command::Demo => demo::run()
            .map(|shown| shown.success)
            .map_err(|e| chain(&e)),
        Command::Soak(options) => soak::run(&options).map_err(|e| chain(&e)),
        Command::Pictures => pictures::run().map_err(|e| chain(&e)),
        Command::Bench(options) => bench::run(&options).map_err(|e| chain(&e)),
        Command::Deb(options) => deb::run(&options).map_err(|e| chain(&e)),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _nobody_to_tell = writeln!(std::io::stderr(), "xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The root of this clone.
fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own)
}

/// The error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Shows a line at once.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // If standard output is closed, the task goes on.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
