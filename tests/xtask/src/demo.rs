//! `xtask demo`.

use std::process::Command;
use std::time::Duration;

use lab::{BuildError, Lab, LabError};

use crate::command::{self, CommandError};
use crate::files::{Files, FilesError};
use crate::machine::{DoctorError, Host, Programs};
use crate::say;

/// Longest time that the demonstration may take, on any machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Memory of the lab machine: the guest's 512 MiB and the files.
const LAB_MEMORY_MIB: u32 = 1536;

/// Why there is no demonstration.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A program doesn't build.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// It isn't known what this machine can do.
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    /// A file is missing.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The lab failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// It did not run on this machine.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Runs it; true if it was a success.
///
/// # Errors
/// See [`DemoError`].
pub fn run() -> Result<bool, DemoError> {
    let programs = Programs::build()?;
    let files = Files::for_demo(&programs)?;
    let host = Host::examine(&programs)?;
    if host.runs_linux {
        say(&format!("this machine's KVM runs Linux: {}", host.verdict));
        let mut e2e = Command::new(&programs.e2e);
        e2e.arg("demo")
            .env("VMPROBE_FILES", &files.folder)
            .env("VMPROBE_BIN_DIR", &programs.folder);
        Ok(command::run(&mut e2e, LIMIT, say)?.success())
    } else {
        say(&format!(
            "{}\nso it runs in the lab: upstream kvm-amd in an emulated CPU",
            host.verdict
        ));
        let mut lab = Lab::new(vec!["/bin/e2e".into(), "demo".into()]);
        lab.files = files.in_lab("/boot");
        lab.files.extend(programs.in_lab());
        lab.env.push(("VMPROBE_FILES".into(), "/boot".into()));
        lab.memory_mib = LAB_MEMORY_MIB;
        lab.time_limit = LIMIT;
        Ok(lab.run()?.exit.success())
    }
}
