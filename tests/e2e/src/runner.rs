//! Running tests, each in a process of its own, so that one that hangs or crashes is a failure of
//! that test alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;

use crate::context::{Context, Place, any_seed};
use crate::parts::Part;
use crate::shard::Shard;
use crate::test::{Failure, Needs, Outcome, Test};
use crate::{ALL_NEEDS, say, tests};

/// How long a test may take. Only a net: no test waits for time.
const LIMIT_TINY: Duration = Duration::from_secs(120);
const LIMIT_LINUX: Duration = Duration::from_secs(600);
/// The same where the CPU is emulated instruction by instruction.
const LIMIT_LINUX_INTEL: Duration = Duration::from_secs(1800);
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
    for test in &chosen {
        let started = Instant::now();
        let (outcome, output) = run_one(test, run.place, seed)?;
        let millis = started.elapsed().as_millis() as u64;
        let (status, note) = match outcome {
            Outcome::Pass(note) => ("pass", note),
            Outcome::Skip(note) => ("skip", note),
            Outcome::Fail(note) => ("fail", note),
        };
        let remark = if note.is_empty() {
            String::new()
        } else {
            format!(": {note}")
        };
        let seconds = millis as f64 / 1000.0;
        say(&format!(
            "{status} {:<58} {seconds:>6.1} s{remark}",
            test.name
        ));
        if status == "fail" {
            failed += 1;
            show_tail(&output);
        }
        let place = run.place.name();
        let record = Record {
            name: test.name,
            ids: test.ids,
            status,
            place,
            note,
            millis,
        };
        if let Some(file) = &mut results {
            // A record of strings and a number always serializes.
            let line = serde_json::to_string(&record).unwrap_or_default();
            writeln!(file, "{line}").map_err(|e| RunError::Io("write the results", e))?;
        }
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

/// Runs one test in a child of this process; returns what it wrote, too.
fn run_one(test: &Test, place: Place, seed: u64) -> Result<(Outcome, String), RunError> {
    let folder = std::env::temp_dir().join(format!("vmprobe-e2e-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|e| RunError::Io("make a folder for a test", e))?;
    let result = run_in(&folder, test, place, seed);
    fs::remove_dir_all(&folder).map_err(|e| RunError::Io("remove a test's folder", e))?;
    result
}

fn run_in(
    folder: &Path,
    test: &Test,
    place: Place,
    seed: u64,
) -> Result<(Outcome, String), RunError> {
    let (log, outcome) = (folder.join("output"), folder.join("outcome"));
    let file = File::create(&log).map_err(|e| RunError::Io("make a log", e))?;
    let own = std::env::current_exe().map_err(|e| RunError::Io("find this program", e))?;
    let mut command = Command::new(own);
    command
        .args(["exec", test.name, "--where", place.name()])
        .args(["--seed", &seed.to_string(), "--outcome"])
        .arg(&outcome)
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .stdout(
            file.try_clone()
                .map_err(|e| RunError::Io("share a log", e))?,
        )
        .stderr(file);
    let limit = match (test.needs, place) {
        (Needs::Linux, Place::LabIntel) => LIMIT_LINUX_INTEL,
        (Needs::Linux, _) => LIMIT_LINUX,
        _ => LIMIT_TINY,
    };
    let ended = run_limited(&mut command, limit)?;
    let output = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    let told = fs::read(&outcome)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let outcome = match (ended, told) {
        (None, _) => Outcome::Fail(format!("it did not end within {} s", limit.as_secs())),
        (Some(_), Some(outcome)) => outcome,
        (Some(status), None) => Outcome::Fail(format!("it crashed ({status})")),
    };
    Ok((outcome, output))
}

/// Runs a command to its end; none if the limit passed and it was killed with all it started.
fn run_limited(command: &mut Command, limit: Duration) -> Result<Option<ExitStatus>, RunError> {
    use std::os::unix::process::CommandExt;

    command.process_group(0);
    let mut child = command
        .spawn()
        .map_err(|e| RunError::Io("start a test", e))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (told, ended) = mpsc::channel();
    thread::spawn(move || {
        // The receiver waits for as long as this sends.
        let _ = told.send(child.wait());
    });
    let kill = || {
        // It may have gone already.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
    };
    let wait_error = |e| RunError::Io("wait for a test", e);
    match ended.recv_timeout(limit) {
        Ok(status) => {
            // What a crashed test left running.
            kill();
            Ok(Some(status.map_err(wait_error)?))
        }
        Err(_) => {
            kill();
            if let Ok(status) = ended.recv() {
                status.map_err(wait_error)?;
            }
            Ok(None)
        }
    }
}

/// Runs one test in this process and leaves its outcome in a file.
///
/// # Errors
/// If there is no such test, or the outcome can't be written.
pub fn exec(
    name: &str,
    cx: Result<Context, Failure>,
    outcome_file: &Path,
) -> Result<bool, RunError> {
    let test = tests().find(|test| test.name == name);
    let test = test.ok_or_else(|| RunError::NoTest(name.to_owned()))?;
    let result = cx.and_then(|cx| (test.run)(&cx));
    let outcome = result.unwrap_or_else(|failure| Outcome::Fail(failure.to_string()));
    // An enum of strings always serializes.
    let json = serde_json::to_vec(&outcome).unwrap_or_default();
    fs::write(outcome_file, json).map_err(|e| RunError::Io("write the outcome", e))?;
    Ok(!matches!(outcome, Outcome::Fail(_)))
}
