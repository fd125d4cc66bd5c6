//! Python's libraries for a receiver of OpenTelemetry's protocol, for this machine's tests.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use lab::{CacheError, cache_dir};

/// The libraries, from `PyPI`. Each set of versions has its own folder in the cache.
const LIBRARIES: [&str; 3] = [
    "grpcio==1.85.3",
    "opentelemetry-proto==1.45.2",
    "protobuf==7.36.2",
];

/// What the folder is called beside the programs.
pub const NAME: &str = "otlp-receiver";

/// Why there are none.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
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
    #[error("can't put Python's libraries in place at {path}", path = .0.display())]
    Io(PathBuf, #[source] io::Error),
}

/// The folder with them, in which Python finds them (`PYTHONPATH`).
///
/// # Errors
/// See [`OtlpError`].
pub fn ensure() -> Result<PathBuf, OtlpError> {
    let name = LIBRARIES
        .map(|library| library.replace("==", "-"))
        .join("_");
    let folder = cache_dir()?.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    // Two processes may fetch them at the same time.
    let own = std::process::id().to_string();
    let unfinished = folder.with_extension(format!("{own}.new"));
    let environment = folder.with_extension(format!("{own}.venv"));
    run(Command::new("python3")
        .args(["-m", "venv"])
        .arg(&environment))?;
    let mut install = Command::new(environment.join("bin/pip"));
    install
        .args(["install", "--quiet", "--target"])
        .arg(&unfinished);
    run(install.args(LIBRARIES))?;
    let _only_needed_to_install = fs::remove_dir_all(&environment);
    match fs::rename(&unfinished, &folder) {
        // Another process has been as fast.
        Err(_) if folder.is_dir() => {
            let _only_wanted_once = fs::remove_dir_all(&unfinished);
        }
        renamed => renamed.map_err(|cause| OtlpError::Io(folder.clone(), cause))?,
    }
    Ok(folder)
}

fn run(command: &mut Command) -> Result<(), OtlpError> {
    let output = command.output().map_err(OtlpError::Start)?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(OtlpError::Pip(errors.into_owned()))
        }
    }
}
