//! `xtask test`: unit tests, then the end-to-end tests where they can run.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use lab::{BuildError, LabError};

use crate::command::{self, CommandError};
use crate::files::{Files, FilesError};
use crate::jobs::{self, Job};
use crate::labs::{self, LabOptions, Work};
use crate::machine::{DoctorError, Host, Programs};
use crate::record::{self, Claim, Record, Run, Status};
use crate::{chain, lines, requirements, root, say};

/// Longest time of each part. They only end hanging parts: no test waits for time.
const UNIT_LIMIT: Duration = Duration::from_secs(30 * 60);
const E2E_LIMIT: Duration = Duration::from_secs(55 * 60);

/// This machine, of [`record::PLACES`].
const HOST: &str = record::PLACES[0];
/// Rows that unit tests prove: with the engine on this machine's CPU (tests/native), with the monitor on this machine's
/// KVM (vmm/tests/debug), with other programs that read our files (trace-formats), and with tools that check the files
/// of an installation (cli/tests/installed, tests/deployment).
const UNIT_ROWS: [&str; 15] = [
    "KP10", "KP11", "KP18", "KP22", "JP06", "JP07", "JP10", "JP11", "JP12", "TR02", "TR04", "TR07",
    "TR08", "SV08", "SV09",
];
/// Rows that the monitor's own tests in a lab prove.
const MONITOR_ROWS: [&str; 1] = ["KP18"];
/// What an end-to-end test in a lab may need.
pub const LAB_NEEDS: &str = "none,tiny,linux";
/// What an end-to-end test may need on a machine that runs Linux guests.
const ALL_NEEDS: &str = "none,tiny,host,linux";

/// What to test.
#[derive(Debug, Args)]
pub struct Options {
    /// Leave the unit tests out.
    #[arg(long)]
    skip_unit: bool,
    /// Only end-to-end tests with this in their name, or of this row of docs/requirements.md. Leaves the
    /// monitor's own tests in the lab out, and the conformance report as it is.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Where the tests' random numbers begin, to run some again that drew them; by default anywhere.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    #[command(flatten)]
    labs: LabOptions,
}

/// Why the tests did not run.
#[derive(Debug, thiserror::Error)]
pub enum TestError {
    /// A program doesn't build.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A file is missing.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// It isn't known what this machine can do.
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    /// A program did not run to its end.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The lab failed.
    #[error("the tests did not run to their end in the lab")]
    Lab(#[from] LabError),
    /// Results aren't understood.
    #[error("can't read the results of the tests")]
    Results(#[from] serde_json::Error),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
    /// A program ended otherwise than its results say.
    #[error("the tests ended with {0}, which their results don't account for")]
    Unaccounted(String),
}

/// The number of tests by outcome.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// Tests that failed or were skipped, and why, a line each.
    lines: Vec<String>,
}

/// Runs all tests. Returns true if none failed and some ran. The last lines say which failed or were skipped, and how
/// many passed.
///
/// # Errors
/// If the requirements of the tests can't be met. The last lines also report that, as one failed test.
pub fn run(options: &Options) -> Result<bool, TestError> {
    let mut counts = Counts::default();
    let mut runs = Vec::new();
    if !options.skip_unit && !options.labs.leaves_everyday_out() {
        match timed("unit tests", unit_tests) {
            Ok((part, run)) => {
                counts.add(part);
                runs.push(run);
            }
            Err(error) => counts.fail("unit tests", &chain(&error)),
        }
    }
    match end_to_end(options, runs) {
        Ok(part) => counts.add(part),
        Err(error) => counts.fail("end-to-end tests", &chain(&error)),
    }
    let Counts {
        passed,
        failed,
        skipped,
        lines,
    } = counts;
    lines.iter().for_each(|line| say(line));
    say(&format!(
        "{passed} passed, {failed} failed, {skipped} skipped"
    ));
    Ok(failed == 0 && passed > 0)
}

/// Does a part of the tests, and says how long it took, for when the tests take too long.
pub fn timed<T>(what: &str, part: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = part();
    say(&format!("# {what} took {} s", begun.elapsed().as_secs()));
    result
}

/// Runs `cargo test` of the whole workspace, on this machine. The run has the records of those tests that prove rows of
/// docs/requirements.md.
fn unit_tests() -> Result<(Counts, Run), TestError> {
    say("# unit tests");
    let name = format!("vmprobe-unit-results-{}.jsonl", std::process::id());
    let results = std::env::temp_dir().join(name);
    let io = |what| {
        let path = results.clone();
        move |error| TestError::Io(what, path, error)
    };
    fs::write(&results, "").map_err(io("write"))?;
    let counts = Arc::new(Mutex::new(Counts::default()));
    let sum = Arc::clone(&counts);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["test", "--workspace", "--no-fail-fast"])
        .env("VMPROBE_RESULTS", &results)
        .current_dir(root());
    let status = command::run(&mut cargo, UNIT_LIMIT, move |line| {
        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = Counts::of_summary(line) {
            sum.add(part);
        } else if !line.is_empty() {
            sum.lines.extend(failed_unit_test(line));
            say(line);
        }
    })?;
    let lines = fs::read_to_string(&results).map_err(io("read"))?;
    fs::remove_file(&results).map_err(io("remove"))?;
    let mut counts = std::mem::take(&mut *counts.lock().unwrap_or_else(PoisonError::into_inner));
    if !status.success() && counts.failed == 0 {
        // The tests did not build, or a test's process died before its summary.
        counts.fail("unit tests", &format!("they ended with {status}"));
    }
    let run = Run {
        place: HOST,
        claims: vec![unit_claim()],
        records: record::read(&lines)?,
        died: (!status.success()).then(|| format!("the unit tests ended with {status}")),
    };
    Ok((counts, run))
}

/// Runs the end-to-end tests: on this machine as far as its KVM allows, all others in the labs. Writes the conformance
/// report, which includes the given runs.
fn end_to_end(options: &Options, mut runs: Vec<Run>) -> Result<Counts, TestError> {
    say("# end-to-end tests");
    let reports = options.filter.is_none() && !options.labs.is_partial();
    if reports {
        // If this run doesn't get to its end, an older report must not be taken for its own.
        let _there_may_be_none = fs::remove_file(conformance_file());
    }
    let programs = timed("building the programs for the labs", Programs::build)?;
    let files = Files::for_tests(&programs)?;
    let host = Host::examine(&programs)?;
    say(&format!("# on this machine: {}", host.verdict));
    let needs = match (host.runs_linux, host.runs_tiny) {
        (true, _) => ALL_NEEDS,
        (false, true) => "none,tiny,host",
        (false, false) => "none",
    };
    let before = runs.len();
    let filter = options.filter.as_deref();
    let claims = |needs| e2e_claims(&programs, &e2e_arguments(HOST, needs, filter));
    let host_claims = claims(needs)?;
    let mut jobs: Vec<Job<'_>> = Vec::new();
    if !options.labs.leaves_everyday_out() {
        jobs.push(Box::new(|| {
            run_at(HOST, host_claims, || {
                on_host(&programs, &files, needs, options)
            })
        }));
    }
    if !host.runs_linux {
        let work = Work {
            programs: &programs,
            files: &files,
            filter,
            seed: options.seed,
        };
        jobs.extend(labs::jobs(work, &options.labs)?);
    }
    runs.extend(jobs::run(jobs, jobs::workers(labs::TAKES_MIB)));
    let mut counts = Counts::default();
    for run in runs.iter().skip(before) {
        counts.add(Counts::of_run(run));
    }
    for run in &runs {
        counts.add_unmet(run);
    }
    if reports {
        let mut everywhere = claims(ALL_NEEDS)?;
        everywhere.extend([unit_claim(), monitor_claim()]);
        write_conformance(&runs, &everywhere, &mut counts)?;
    }
    Ok(counts)
}

fn unit_claim() -> Claim {
    Claim::part("unit tests", &UNIT_ROWS)
}

/// The claim of the monitor's tests, which each lab runs.
pub fn monitor_claim() -> Claim {
    Claim::part("the monitor's tests", &MONITOR_ROWS)
}

/// Returns the claims of the end-to-end tests that would run with these arguments.
///
/// # Errors
/// If they can't be listed.
pub fn e2e_claims(programs: &Programs, arguments: &[String]) -> Result<Vec<Claim>, TestError> {
    let lines = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&lines);
    let mut e2e = Command::new(&programs.e2e);
    command::run(
        e2e.args(["list", "--json"]).args(arguments),
        E2E_LIMIT,
        move |line| {
            let mut lines = sink.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push_str(line);
            lines.push('\n');
        },
    )?;
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(record::read(&lines)?)
}

/// Makes a run at a place. If it dies, the results of other places stay valid.
pub fn run_at(
    place: &'static str,
    claims: Vec<Claim>,
    run: impl FnOnce() -> Result<Vec<Record>, TestError>,
) -> Run {
    let (records, died) = match run() {
        Ok(records) => (records, None),
        Err(error) => (Vec::new(), Some(chain(&error))),
    };
    Run {
        place,
        claims,
        records,
        died,
    }
}

fn on_host(
    programs: &Programs,
    files: &Files,
    needs: &str,
    options: &Options,
) -> Result<Vec<Record>, TestError> {
    let results = programs
        .folder
        .join(format!("results-{}.jsonl", std::process::id()));
    let io = |what| {
        let path = results.clone();
        move |error| TestError::Io(what, path, error)
    };
    fs::write(&results, "").map_err(io("write"))?;
    let mut e2e = Command::new(&programs.e2e);
    e2e.arg("run")
        .args(e2e_arguments(HOST, needs, options.filter.as_deref()))
        .args(seed_arguments(options.seed))
        .env("VMPROBE_RESULTS", &results)
        .env("VMPROBE_FILES", &files.folder)
        .env("VMPROBE_BIN_DIR", &programs.folder);
    let show = |line: &str| say(&lines::labelled(HOST, line));
    let status = command::run(&mut e2e, E2E_LIMIT, show)?;
    let lines = fs::read_to_string(&results).map_err(io("read"))?;
    fs::remove_file(&results).map_err(io("remove"))?;
    account(
        record::read(&lines)?,
        status.success(),
        &status.to_string(),
        options.filter.is_some(),
    )
}

/// Arguments of `e2e run` and `e2e list`.
pub fn e2e_arguments(place: &str, needs: &str, filter: Option<&str>) -> Vec<String> {
    let mut arguments: Vec<String> = ["--where", place, "--needs", needs]
        .map(str::to_owned)
        .into();
    if let Some(filter) = filter {
        arguments.extend(["--filter".to_owned(), filter.to_owned()]);
    }
    arguments
}

/// Arguments of `e2e run` for random numbers.
pub fn seed_arguments(seed: Option<u64>) -> Vec<String> {
    let seed = seed.map(|seed| ["--seed".to_owned(), seed.to_string()]);
    seed.map_or_else(Vec::new, Vec::from)
}

/// Returns the records, unless the program's exit status contradicts them. A filter may leave nothing to do for one of
/// the places.
///
/// # Errors
/// If it does.
pub fn account(
    records: Vec<Record>,
    success: bool,
    ended: &str,
    may_be_empty: bool,
) -> Result<Vec<Record>, TestError> {
    let failed = records.iter().any(|record| record.status == Status::Fail);
    let nothing_to_do = records.is_empty() && may_be_empty;
    if success == failed && !nothing_to_do {
        return Err(TestError::Unaccounted(ended.to_owned()));
    }
    Ok(records)
}

/// Writes `target/conformance.json`, of all runs and of the claims of all tests, wherever they run. Rows that tests
/// name wrongly count as failed: those that don't exist, or that only the results name.
fn write_conformance(
    runs: &[Run],
    everywhere: &[Claim],
    counts: &mut Counts,
) -> Result<(), TestError> {
    let rows = requirements::ids();
    for (record, id) in runs.iter().flat_map(|run| run.strays(&rows)) {
        let what = format!(
            "it names row {id}, which isn't in docs/requirements.md or which it didn't claim"
        );
        counts.fail(&record.name, &what);
    }
    let claims = runs.iter().flat_map(|run| &run.claims).chain(everywhere);
    let claimed: BTreeSet<&str> = claims
        .flat_map(|claim| claim.ids.iter().map(String::as_str))
        .collect();
    let path = conformance_file();
    let json = serde_json::to_string_pretty(&record::conformance(&rows, runs, &claimed))?;
    fs::create_dir_all(root().join("target"))
        .and_then(|()| fs::write(&path, json + "\n"))
        .map_err(|error| TestError::Io("write", path.clone(), error))
}

/// Returns what is shown at the end for a test that has failed by a line of `cargo test`.
fn failed_unit_test(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(format!("fail {name} (unit test)"))
}

fn conformance_file() -> PathBuf {
    root().join("target").join("conformance.json")
}

impl Counts {
    /// The counts of one run's tests; a run that died is one failure more.
    fn of_run(run: &Run) -> Self {
        let mut counts = Self::default();
        for record in &run.records {
            let what = format!("{} ({})", record.name, record.place);
            match record.status {
                Status::Pass => counts.passed += 1,
                Status::Fail => counts.fail(&what, &record.note),
                Status::Skip | Status::Missing => {
                    counts.skipped += 1;
                    counts.lines.push(format!("skip {what}: {}", record.note));
                }
            }
        }
        if let Some(died) = &run.died {
            counts.fail(run.place, died);
        }
        counts
    }

    /// Counts as failed what a finished run should have proved and did not.
    fn add_unmet(&mut self, run: &Run) {
        for (claim, id) in run.unmet().filter(|_| run.died.is_none()) {
            let what = format!("it told nothing of row {id}");
            self.fail(&format!("{} ({})", claim.name, run.place), &what);
        }
    }

    fn fail(&mut self, what: &str, why: &str) {
        self.lines.push(format!("fail {what}: {why}"));
        self.failed += 1;
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.lines.extend(other.lines);
    }

    /// Returns the counts of a test program's last line: `test result: ok. 3 passed; 0 failed; ...`.
    fn of_summary(line: &str) -> Option<Self> {
        let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
        let number = |what: &str| {
            let part = counts
                .split("; ")
                .find_map(|part| part.strip_suffix(what))?;
            part.trim().parse().ok()
        };
        Some(Self {
            passed: number(" passed")?,
            failed: number(" failed")?,
            skipped: number(" ignored")?,
            lines: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_cargo_test_is_understood() {
        let line = "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; \
                    3 filtered out; finished in 0.05s";
        let expected = Counts {
            passed: 12,
            failed: 1,
            skipped: 2,
            lines: Vec::new(),
        };
        assert_eq!(Counts::of_summary(line), Some(expected));
        assert_eq!(Counts::of_summary("running 3 tests"), None);
    }

    #[test]
    fn a_failed_unit_test_is_told_by_its_name() {
        let told = failed_unit_test("test record::tests::a_part ... FAILED");
        assert_eq!(
            told.as_deref(),
            Some("fail record::tests::a_part (unit test)")
        );
        assert_eq!(failed_unit_test("test record::tests::a_part ... ok"), None);
    }
}
