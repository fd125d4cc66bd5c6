//! Packages of `PyPI`, installed once into folders of the cache.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::cache::{CacheError, cache_dir, put_in_place};

/// Why packages aren't there.
#[derive(Debug, thiserror::Error)]
pub enum PypiError {
    /// There is no cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A program failed.
    #[error("{0} failed: {1}")]
    Failed(&'static str, String),
    /// A program can't be started.
    #[error("can't start {0} (deploy/setup.sh installs it)")]
    Start(&'static str, #[source] io::Error),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
}

/// A folder with these packages, for `PYTHONPATH`.
///
/// # Errors
/// If they can't be fetched.
pub fn ensure_pypi(packages: &[&str]) -> Result<PathBuf, PypiError> {
    let folder = cache_dir()?.join(packages.join("_").replace("==", "-"));
    if folder.is_dir() {
        return Ok(folder);
    }
    // A version has dots, so the ending is appended and doesn't replace one. Two processes may fetch packages at the
    // same time.
    let own = std::process::id();
    let beside = |ending: &str| {
        let mut name = folder.clone().into_os_string();
        name.push(format!("-{own}{ending}"));
        PathBuf::from(name)
    };
    let (unfinished, environment) = (beside(".new"), beside(".venv"));
    let mut make = Command::new("python3");
    run("python3", make.args(["-m", "venv"]).arg(&environment))?;
    let mut install = Command::new(environment.join("bin/pip"));
    install
        .args(["install", "--quiet", "--target"])
        .arg(&unfinished)
        .args(packages);
    run("pip", &mut install)?;
    let _only_needed_to_install = fs::remove_dir_all(&environment);
    put_in_place(&unfinished, &folder).map_err(|e| PypiError::Io("name", folder.clone(), e))?;
    Ok(folder)
}

/// Runs Python with these arguments. Returns what it prints.
///
/// # Errors
/// It can't be started, or fails.
pub fn run_python(command: &mut Command) -> Result<String, PypiError> {
    run("python3", command)
}

/// Runs a program. Returns what it prints.
fn run(name: &'static str, command: &mut Command) -> Result<String, PypiError> {
    let output = command.output();
    let output = output.map_err(|cause| PypiError::Start(name, cause))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(PypiError::Failed(name, errors))
        }
    }
}
