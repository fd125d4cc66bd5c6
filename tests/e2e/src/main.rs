//! The end-to-end tests, in one static program that runs on any machine with the product's own
//! programs beside it: `e2e run` runs the tests, in processes of their own; `e2e demo` shows the
//! product at work.

mod bare;
mod console;
mod context;
mod demo;
mod drgn;
mod events;
mod exports;
mod faults;
mod gdb;
mod guest_ram;
mod held_thread;
mod http;
mod languages;
mod linux;
mod parts;
mod process;
mod remote;
mod runner;
mod server;
mod service;
mod shard;
mod soak;
mod tables;
mod terminal;
mod test;
mod tiny;
mod watched;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::context::{Context, Place, any_seed};
use crate::runner::{Run, RunError};
use crate::test::{Failure, Needs, Test};

/// The end-to-end tests.
#[derive(Debug, Parser)]
#[command(name = "e2e")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the tests that `run` would run: name, what it needs, rows of docs/requirements.md.
    List {
        /// One line of JSON for each test.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        run: Run,
    },
    /// Run tests, in processes of their own.
    Run(Run),
    /// Run tests in this process, and write a line of JSON with the outcome of each.
    Exec {
        /// The tests.
        #[arg(required = true)]
        names: Vec<String>,
        /// Where it runs.
        #[arg(long = "where", value_enum)]
        place: Place,
        /// Where its random numbers begin.
        #[arg(long)]
        seed: u64,
    },
    /// Boot a stock kernel and watch its probes from separate processes.
    Demo {
        /// File for what its commands write, one line of JSON each.
        #[arg(long, value_name = "FILE", env = "VMPROBE_RESULTS")]
        results: Option<PathBuf>,
    },
    /// Have clients do anything at random with a server and its guests, and watch that all stays as it should be. The
    /// last line says what it came to.
    Soak {
        /// How long, in seconds.
        #[arg(long, value_name = "NUMBER", default_value_t = 3600)]
        seconds: u64,
        /// Where random numbers begin, to draw the same again; by default anywhere.
        #[arg(long, value_name = "NUMBER")]
        seed: Option<u64>,
        /// Only these actions of clients (comma-separated), to find what makes a soak fail.
        #[arg(long, value_enum, value_delimiter = ',')]
        only: Vec<soak::Action>,
        /// File for a report as JSON.
        #[arg(long, value_name = "FILE")]
        report: Option<PathBuf>,
    },
    /// Measure exits and stops of Linux guests.
    Bench {
        /// Where it runs.
        #[arg(long = "where", value_enum)]
        place: Place,
        /// File to add the figures to, one line of JSON each.
        #[arg(long, value_name = "FILE", env = "VMPROBE_RESULTS")]
        results: Option<PathBuf>,
        /// Only this part.
        #[arg(long, value_enum)]
        only: Option<linux::bench::Part>,
    },
}

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Failure(#[from] Failure),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::List { json, run } => {
            list(&run, json);
            Ok(true)
        }
        Command::Run(run) => runner::run(&run).map_err(Error::from),
        Command::Exec { names, place, seed } => {
            let cx = Context::new(place, seed);
            runner::exec(&names, cx).map_err(Error::from)
        }
        Command::Demo { results } => Context::new(Place::Host, any_seed())
            .and_then(|cx| demo::run(&cx, results.as_deref()))
            .map_err(Error::from),
        Command::Soak {
            seconds,
            seed,
            only,
            report,
        } => Context::new(Place::Host, seed.unwrap_or_else(any_seed))
            .and_then(|cx| {
                soak::run_for(&cx, Duration::from_secs(seconds), only, report.as_deref())
            })
            .map_err(Error::from),
        Command::Bench {
            place,
            results,
            only,
        } => Context::new(place, any_seed())
            .and_then(|cx| linux::bench::run(&cx, results, only))
            .map_err(Error::from),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("e2e: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// All tests, those that need least first.
fn tests() -> impl Iterator<Item = &'static Test> {
    [
        service::TESTS,
        service::deadlines::TESTS,
        tables::TESTS,
        tiny::TESTS,
        tiny::actions::TESTS,
        tiny::held::TESTS,
        watched::TESTS,
        exports::TESTS,
        languages::TESTS,
        faults::TESTS,
        soak::TESTS,
    ]
    .into_iter()
    .chain(linux::tables())
    .flatten()
}

fn list(run: &Run, json: bool) {
    for test in run.chosen() {
        if json {
            let line = serde_json::json!({ "name": test.name, "ids": test.ids });
            say(&line.to_string());
            continue;
        }
        let needs = format!("{:?}", test.needs).to_lowercase();
        say(&format!(
            "{:<60} {needs:<6} {}",
            test.name,
            test.ids.join(" ")
        ));
    }
}

/// Shows a line of what a test does, which is of use if the test fails.
fn note(line: &str) {
    // If standard error is closed, the test goes on.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Shows a line at once.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // If standard output is closed, the test goes on.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

/// The needs that a run covers when it is given none.
const ALL_NEEDS: [Needs; 4] = [Needs::None, Needs::Tiny, Needs::Host, Needs::Linux];

#[cfg(test)]
mod tests {
    use super::tests;

    #[test]
    fn each_row_that_a_test_names_is_in_the_requirements() {
        let document = include_str!("../../../docs/requirements.md");
        for test in tests() {
            for id in test.ids {
                let row = format!("\n| {id} | ");
                assert!(document.contains(&row), "{}: {id}", test.name);
            }
        }
    }
}
