//! What this machine can run, by the product's own measurement, and the programs built for it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lab::{BuildError, Program};
use serde::Deserialize;

use crate::command::{self, CommandError};
use crate::say;

/// The doctor measures for some seconds at most.
const DOCTOR_LIMIT: Duration = Duration::from_secs(120);

/// Programs that the tests are made of, statically linked so that they run anywhere.
#[derive(Debug)]
pub struct Programs {
    /// The server.
    pub vmprobed: PathBuf,
    /// The client.
    pub vmprobe: PathBuf,
    /// The end-to-end tests.
    pub e2e: PathBuf,
    /// PID 1 of the Linux guests.
    pub guest: PathBuf,
    /// The product's own PID 1.
    pub init: PathBuf,
    /// The monitor's tests of steps and watchpoints, which each lab runs too.
    pub monitor_tests: PathBuf,
    /// The folder that the programs are in.
    pub folder: PathBuf,
}

impl Programs {
    /// Builds them, unless they are built already.
    ///
    /// # Errors
    /// If one doesn't build.
    pub fn build() -> Result<Self, BuildError> {
        say("building the programs for the tests (static, optimized; some minutes the first time)");
        let [vmprobed, vmprobe, e2e, guest, init, monitor_tests] = lab::static_programs([
            Program::bin("vmprobe-server", "vmprobed"),
            Program::bin("vmprobe-cli", "vmprobe"),
            Program::bin("e2e", "e2e"),
            Program::bin("guest", "guest"),
            Program::bin("vmprobe-init", "vmprobe-init"),
            Program::test("vmm", "debug"),
        ])?;
        Ok(Self {
            folder: vmprobed.parent().map(PathBuf::from).unwrap_or_default(),
            vmprobed,
            vmprobe,
            e2e,
            guest,
            init,
            monitor_tests,
        })
    }
}

impl Programs {
    /// The path of the monitor's tests in the lab.
    pub const MONITOR_TESTS: &str = "/bin/monitor-tests";

    /// Those that run in the lab, and their paths there.
    pub fn in_lab(&self) -> Vec<(PathBuf, String)> {
        let programs = [
            (&self.vmprobed, "/bin/vmprobed"),
            (&self.vmprobe, "/bin/vmprobe"),
            (&self.e2e, "/bin/e2e"),
            (&self.guest, "/bin/guest"),
            (&self.init, "/bin/vmprobe-init"),
            (&self.monitor_tests, Self::MONITOR_TESTS),
        ];
        programs
            .map(|(path, inside)| (path.clone(), inside.to_owned()))
            .into()
    }
}

/// Why it isn't known what this machine can run.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// The doctor did not run.
    #[error("`vmprobed doctor` did not run")]
    Run(#[from] CommandError),
    /// Its report isn't understood.
    #[error("can't read the report of `vmprobed doctor`: {1:?}")]
    Report(#[source] serde_json::Error, String),
}

/// What the doctor found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// True if Linux runs.
    pub runs_linux: bool,
    /// True if guests of some instructions run.
    pub runs_tiny: bool,
    /// The message for the user.
    pub verdict: String,
}

/// The part of the doctor's report that is used here.
#[derive(Debug, Deserialize)]
struct Report {
    runs_linux: bool,
    verdict: String,
    guest: Option<Guest>,
}

#[derive(Debug, Deserialize)]
struct Guest {
    starts: Check,
}

#[derive(Debug, Deserialize)]
struct Check {
    ok: bool,
}

impl Host {
    /// Asks the doctor.
    ///
    /// # Errors
    /// If it does not run, or is not understood.
    pub fn examine(programs: &Programs) -> Result<Self, DoctorError> {
        let text = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&text);
        let mut doctor = Command::new(&programs.vmprobed);
        // Its exit code only repeats its report.
        command::run(
            doctor.args(["doctor", "--json"]),
            DOCTOR_LIMIT,
            move |line| {
                *sink.lock().unwrap_or_else(PoisonError::into_inner) += line;
            },
        )?;
        let text = text.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self::read(&text).map_err(|error| DoctorError::Report(error, text))
    }

    fn read(report: &str) -> Result<Self, serde_json::Error> {
        let report: Report = serde_json::from_str(report)?;
        Ok(Self {
            runs_linux: report.runs_linux,
            runs_tiny: report.guest.is_some_and(|guest| guest.starts.ok),
            verdict: report.verdict,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_kvm_runs_nothing_and_one_that_emulates_runs_tiny_guests() {
        let none = Host::read(r#"{"runs_linux":false,"verdict":"no KVM","guest":null}"#).unwrap();
        assert!(!none.runs_tiny && !none.runs_linux);
        let text = r#"{"runs_linux":false,"verdict":"v","guest":{"starts":{"ok":true}},"x":1}"#;
        let emulates = Host::read(text).unwrap();
        assert!(emulates.runs_tiny && !emulates.runs_linux);
    }
}
