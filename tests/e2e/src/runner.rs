//! Running tests in processes of their own, so that one that hangs or crashes is a failure of that test alone. Tests
//! with Linux guests run in one process as long as that lives, so that they can have each other's guests.

mod batch;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::context::{Place, any_seed};
use crate::parts::Part;
use crate::shard::Shard;
use crate::test::{Needs, Outcome, Test};
use crate::{ALL_NEEDS, say, tests};

use batch::Told;
pub use batch::exec;

/// Lines of a failed test's output to show.
const TAIL: usize = 200;

/// What to run.
#[derive(Debug, Args)]
pub struct Run {
    /// Only tests with this in their name, or of the rows of docs/requirements.md that begin so.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only tests that need this (comma-separated).
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = ALL_NEEDS)]
    needs: Vec<Needs>,
    /// Only tests of this part.
    #[arg(long, value_enum, default_value = "all")]
    part: Part,
    /// Only a share of these tests: `2/3` is the second of three machines that divide them.
    #[arg(long, value_name = "NUMBER/OF", default_value_t = Shard::WHOLE)]
    shard: Shard,
    /// Where this runs.
    #[arg(long = "where", value_enum, default_value = "host")]
    place: Place,
    /// Where random numbers begin, to run tests again that drew them; by default anywhere.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Append one line of JSON for each test to this file.
    #[arg(long, value_name = "FILE", env = "VMPROBE_RESULTS")]
    results: Option<PathBuf>,
}

/// Why the tests can't be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file operation or process failed.
    #[error("can't {0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// There is no such test.
    #[error("there is no test {0:?}; `e2e list` shows those there are")]
    NoTest(String),
}

/// One line of the results.
#[derive(Debug, Serialize)]
struct Record {
    name: &'static str,
    ids: &'static [&'static str],
    status: &'static str,
    #[serde(rename = "where")]
    place: &'static str,
    note: String,
    millis: u64,
}

/// Runs the tests; true if none failed and at least one ran.
///
/// # Errors
/// If a test can't even be started, or the results can't be written.
pub fn run(run: &Run) -> Result<bool, RunError> {
    let chosen: Vec<&Test> = run.chosen().collect();
    let mut results = match &run.results {
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            Some(file.map_err(|e| RunError::Io("open the results file", e))?)
        }
        None => None,
    };
    let mut failed = 0;
    let seed = run.seed.unwrap_or_else(any_seed);
    say(&format!(
        "# random numbers: --seed {seed} draws the same again"
    ));
    let mut tell = |test: &Test, told: Told| -> Result<(), RunError> {
        let (status, note) = match told.outcome {
            Outcome::Pass(note) => ("pass", note),
            Outcome::Skip(note) => ("skip", note),
            Outcome::Fail(note) => ("fail", note),
        };
        let remark = if note.is_empty() {
            String::new()
        } else {
            format!(": {note}")
        };
        let seconds = told.millis as f64 / 1000.0;
        say(&format!(
            "{status} {:<58} {seconds:>6.1} s{remark}",
            test.name
        ));
        if status == "fail" {
            failed += 1;
            show_tail(&told.output);
        }
        let record = Record {
            name: test.name,
            ids: test.ids,
            status,
            place: run.place.name(),
            note,
            millis: told.millis,
        };
        if let Some(file) = &mut results {
            // A record of strings and a number always serializes.
            let line = serde_json::to_string(&record).unwrap_or_default();
            writeln!(file, "{line}").map_err(|e| RunError::Io("write the results", e))?;
        }
        Ok(())
    };
    let mut left = &chosen[..];
    while !left.is_empty() {
        let together = left
            .iter()
            .take_while(|test| test.needs == Needs::Linux)
            .count();
        let (batch, _) = left.split_at(together.max(1));
        let done = batch::run(batch, run.place, seed, &mut tell)?;
        left = &left[done..];
    }
    Ok(failed == 0 && !chosen.is_empty())
}

impl Run {
    /// The tests to run.
    pub fn chosen(&self) -> impl Iterator<Item = &'static Test> {
        let chosen = tests().filter(|test| self.chooses(test)).enumerate();
        chosen.filter_map(|(index, test)| self.shard.has(index).then_some(test))
    }

    fn chooses(&self, test: &Test) -> bool {
        let fits = |text: &String| {
            test.name.contains(text.as_str()) || test.ids.iter().any(|id| id.starts_with(text))
        };
        self.needs.contains(&test.needs)
            && self.part.has(test, self.place)
            && self.filter.as_ref().is_none_or(fits)
    }
}

fn show_tail(output: &str) {
    let lines: Vec<&str> = output.lines().collect();
    for line in &lines[lines.len().saturating_sub(TAIL)..] {
        say(&format!("     | {line}"));
    }
}
