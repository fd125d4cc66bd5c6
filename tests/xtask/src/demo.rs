//! `xtask demo`.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lab::{BuildError, Lab, LabError};
use serde::Deserialize;

use crate::command::{self, CommandError};
use crate::files::{Files, FilesError};
use crate::machine::{DoctorError, Host, Programs};
use crate::{root, say};

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
    /// What its commands have written didn't come through.
    #[error("can't read what the demonstration's commands have written")]
    Results(#[from] serde_json::Error),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
}

/// The results of a demonstration.
#[derive(Debug)]
pub struct Shown {
    /// Whether it was a success.
    pub success: bool,
    /// Its lines.
    pub screen: String,
    /// The folder with the files that its commands have written.
    pub folder: PathBuf,
}

/// A file that one of its commands has written.
#[derive(Debug, Deserialize)]
struct Written {
    name: String,
    bytes: Vec<u8>,
}

/// Runs it, shows its lines, and puts the files that its commands write into `target/demo`.
///
/// # Errors
/// See [`DemoError`].
pub fn run() -> Result<Shown, DemoError> {
    let programs = Programs::build()?;
    let files = Files::for_demo(&programs)?;
    let host = Host::examine(&programs)?;
    let folder = root().join("target").join("demo");
    fs::create_dir_all(&folder).map_err(|e| DemoError::Io("make", folder.clone(), e))?;
    let (success, screen, results) = if host.runs_linux {
        say(&format!("this machine's KVM runs Linux: {}", host.verdict));
        let results = folder.join("files.jsonl");
        let mut e2e = Command::new(&programs.e2e);
        e2e.arg("demo")
            .env("VMPROBE_RESULTS", &results)
            .env("VMPROBE_FILES", &files.folder)
            .env("VMPROBE_BIN_DIR", &programs.folder);
        let screen = Arc::new(Mutex::new(String::new()));
        let lines = Arc::clone(&screen);
        let status = command::run(&mut e2e, LIMIT, move |line| {
            say(line);
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            *lines += &format!("{line}\n");
        })?;
        let screen = std::mem::take(&mut *screen.lock().unwrap_or_else(PoisonError::into_inner));
        // There are none if it failed.
        let bytes = fs::read(&results).unwrap_or_default();
        (status.success(), screen, bytes)
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
        let mut screen = Tee(Vec::new());
        let run = lab.run_to(&mut screen)?;
        let screen = String::from_utf8_lossy(&screen.0).into_owned();
        (run.exit.success(), screen, run.results)
    };
    for line in String::from_utf8_lossy(&results).lines() {
        let Written { name, bytes } = serde_json::from_str(line)?;
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(|e| DemoError::Io("write", path.clone(), e))?;
    }
    Ok(Shown {
        success,
        screen,
        folder,
    })
}

/// A writer that shows the bytes and keeps them.
struct Tee(Vec<u8>);

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = io::stdout().write(bytes)?;
        self.0.extend(bytes.iter().take(written));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
