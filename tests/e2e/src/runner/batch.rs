//! Tests that run one after the other in one process.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpgrp, getpid, getppid, kill_current_process_group,
    kill_process_group, pidfd_open,
};

use super::RunError;
use crate::context::{Context, Place};
use crate::test::{Failure, Needs, Outcome, Test};
use crate::tests;

/// How long a test may take. This only ends tests that hang: no test waits for time.
const LIMIT_TINY: Duration = Duration::from_secs(240);
const LIMIT_LINUX: Duration = Duration::from_secs(600);
/// The same where the CPU is emulated instruction by instruction.
const LIMIT_LINUX_INTEL: Duration = Duration::from_secs(1800);

/// What is reported of a test.
pub struct Told {
    pub outcome: Outcome,
    /// What the test wrote.
    pub output: String,
    /// How long it took.
    pub millis: u64,
}

/// Runs tests in one child of this process, up to the first that hangs or crashes. `tell` is called after each. Returns
/// how many have run, which is one at least.
///
/// # Errors
/// If a process can't be started or waited for, and those of `tell`.
pub fn run(
    tests: &[&Test],
    place: Place,
    seed: u64,
    tell: &mut dyn FnMut(&Test, Told) -> Result<(), RunError>,
) -> Result<usize, RunError> {
    let folder = std::env::temp_dir().join(format!("vmprobe-e2e-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|e| RunError::Io("make a folder for a test", e))?;
    let result = run_in(&folder, tests, place, seed, tell);
    fs::remove_dir_all(&folder).map_err(|e| RunError::Io("remove a test's folder", e))?;
    result
}

fn run_in(
    folder: &Path,
    tests: &[&Test],
    place: Place,
    seed: u64,
    tell: &mut dyn FnMut(&Test, Told) -> Result<(), RunError>,
) -> Result<usize, RunError> {
    let log = folder.join("output");
    let file = File::create(&log).map_err(|e| RunError::Io("make a log", e))?;
    let mut log = File::open(&log).map_err(|e| RunError::Io("open a log", e))?;
    let mut process = Process::start(folder, tests, place, seed, file)?;
    let mut done = 0;
    for test in tests {
        let started = Instant::now();
        let limit = limit(test, place);
        let (outcome, is_last) = match process.outcomes.recv_timeout(limit) {
            Ok(outcome) => (outcome, false),
            Err(RecvTimeoutError::Timeout) => {
                let why = format!("it did not end within {} s", limit.as_secs());
                (Outcome::Fail(why), true)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = process.wait()?;
                (Outcome::Fail(format!("it crashed ({status})")), true)
            }
        };
        let millis = started.elapsed().as_millis() as u64;
        let mut output = Vec::new();
        // A process that still runs may write more. That output counts as the next test's.
        let read = log.read_to_end(&mut output);
        read.map_err(|e| RunError::Io("read a log", e))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        tell(
            test,
            Told {
                outcome,
                output,
                millis,
            },
        )?;
        done += 1;
        if is_last {
            break;
        }
    }
    Ok(done)
}

fn limit(test: &Test, place: Place) -> Duration {
    match (test.needs, place) {
        (Needs::Linux, Place::LabIntel) => LIMIT_LINUX_INTEL,
        (Needs::Linux, _) => LIMIT_LINUX,
        _ => LIMIT_TINY,
    }
}

/// A process that runs tests. It ends, with all that it has started, when this is dropped.
struct Process {
    child: Child,
    outcomes: Receiver<Outcome>,
}

impl Process {
    fn start(
        folder: &Path,
        tests: &[&Test],
        place: Place,
        seed: u64,
        log: File,
    ) -> Result<Self, RunError> {
        use std::os::unix::process::CommandExt;

        let own = std::env::current_exe().map_err(|e| RunError::Io("find this program", e))?;
        let mut child = Command::new(own)
            .args(["exec", "--where", place.name()])
            .args(["--seed", &seed.to_string()])
            .args(tests.iter().map(|test| test.name))
            .env("TMPDIR", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|e| RunError::Io("start a test", e))?;
        let output = child.stdout.take();
        let (told, outcomes) = mpsc::channel();
        thread::spawn(move || {
            let lines = output.into_iter().flat_map(|it| BufReader::new(it).lines());
            // Other lines on standard output aren't outcomes.
            let outcomes = lines
                .map_while(Result::ok)
                .filter_map(|line| serde_json::from_str(&line).ok());
            for outcome in outcomes {
                if told.send(outcome).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, outcomes })
    }

    fn wait(&mut self) -> Result<ExitStatus, RunError> {
        let status = self.child.wait();
        status.map_err(|e| RunError::Io("wait for a test", e))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // The process may be gone already. Processes that a crashed test has left running may still be in its group.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = self.child.wait();
    }
}

/// Ends this process and all that it has started when its parent ends, which nobody else would do if the parent is
/// killed. A process that doesn't lead a group of its own, such as one of a script, goes on.
fn end_with_parent() -> io::Result<()> {
    let Some(parent) = getppid().filter(|_| getpgrp() == getpid()) else {
        return Ok(());
    };
    let parent = pidfd_open(parent, PidfdFlags::empty())?;
    thread::spawn(move || {
        retry_on_intr(|| poll(&mut [PollFd::new(&parent, PollFlags::IN)], None))?;
        kill_current_process_group(Signal::KILL)
    });
    Ok(())
}

/// Runs tests in this process, and writes a line with the outcome of each on standard output.
///
/// # Errors
/// If there is no such test, or an outcome can't be written.
pub fn exec(names: &[String], cx: Result<Context, Failure>) -> Result<bool, RunError> {
    end_with_parent().map_err(|e| RunError::Io("watch this program's parent", e))?;
    let find = |name: &String| {
        let found = tests().find(|test| test.name == name);
        found.ok_or_else(|| RunError::NoTest(name.to_owned()))
    };
    let chosen: Vec<&Test> = names.iter().map(find).collect::<Result<_, _>>()?;
    let cx = cx.map_err(|failure| failure.to_string());
    let mut is_good = true;
    for (index, test) in chosen.iter().enumerate() {
        let result = match &cx {
            Ok(cx) => (test.run)(cx).and_then(|outcome| {
                if index + 1 == chosen.len() {
                    cx.end_kept()?;
                }
                Ok(outcome)
            }),
            Err(why) => Err(Failure::Wrong(why.clone())),
        };
        let outcome = result.unwrap_or_else(|failure| Outcome::Fail(failure.to_string()));
        is_good &= !matches!(outcome, Outcome::Fail(_));
        // An enum of strings always serializes.
        let json = serde_json::to_string(&outcome).unwrap_or_default();
        let mut output = io::stdout().lock();
        let written = writeln!(output, "{json}").and_then(|()| output.flush());
        written.map_err(|e| RunError::Io("write the outcome", e))?;
    }
    Ok(is_good)
}
