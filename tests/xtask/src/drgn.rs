//! drgn for the lab machine, with the files of Python that it needs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{CacheError, cache_dir};

use crate::gdb::{self, GdbError};
use crate::python::{self, Loaded, PRINT_LOADED};

/// The version, from `PyPI`.
const VERSION: &str = "0.3.0";
/// Loads all of drgn that is used, and prints Python's own program.
const LOAD: &str = "\
import sys
import drgn, drgn.helpers.linux.kallsyms
print(sys._base_executable)
";

/// Why there is no drgn.
#[derive(Debug, thiserror::Error)]
pub enum DrgnError {
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
    /// A library is missing.
    #[error("libraries of drgn can't be found")]
    Libraries(#[from] GdbError),
}

/// drgn, Python and their libraries, each with its path in the lab machine, where drgn is in `folder`.
///
/// # Errors
/// If it can't be fetched, or doesn't load.
pub fn in_lab(folder: &str) -> Result<Vec<(PathBuf, String)>, DrgnError> {
    let installed = ensure()?;
    let mut python = Command::new("python3");
    python
        .args(["-c", &format!("{LOAD}{PRINT_LOADED}")])
        .env("PYTHONPATH", &installed)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let listed = run("python3", &mut python)?;
    let mut lines = listed.lines();
    let program = lines.next().unwrap_or_default().to_owned();
    let inside = |path: &Path| match path.strip_prefix(&installed) {
        Ok(rest) => format!("{folder}/{}", rest.display()),
        Err(_) => path.display().to_string(),
    };
    let mut loaded: BTreeSet<PathBuf> = lines.map(PathBuf::from).collect();
    // Libraries of its own, which its own loader finds.
    let own = installed.join("drgn.libs");
    for entry in fs::read_dir(&own).map_err(|e| DrgnError::Io("read", own.clone(), e))? {
        let entry = entry.map_err(|e| DrgnError::Io("read", own.clone(), e))?;
        loaded.insert(entry.path());
    }
    let Loaded {
        mut files,
        mut libraries,
    } = python::loaded(loaded.into_iter(), inside)?;
    libraries.extend(gdb::libraries_of(&program)?);
    files.push((PathBuf::from(&program), "/bin/python3".to_owned()));
    let others = libraries.into_iter().map(PathBuf::from);
    let others = others.filter(|path| !path.starts_with(&installed));
    files.extend(others.map(|path| (path.clone(), path.display().to_string())));
    Ok(files)
}

/// The folder in the cache that drgn is installed in.
fn ensure() -> Result<PathBuf, DrgnError> {
    let folder = cache_dir()?.join(format!("drgn-{VERSION}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    let unfinished = folder.with_extension("new");
    let environment = folder.with_extension("venv");
    let venv = ["-m", "venv"];
    run(
        "python3",
        Command::new("python3").args(venv).arg(&environment),
    )?;
    let mut install = Command::new(environment.join("bin/pip"));
    install
        .args(["install", "--quiet", "--target"])
        .arg(&unfinished)
        .arg(format!("drgn=={VERSION}"));
    run("pip", &mut install)?;
    let _only_needed_to_install = fs::remove_dir_all(&environment);
    fs::rename(&unfinished, &folder).map_err(|e| DrgnError::Io("name", folder.clone(), e))?;
    Ok(folder)
}

fn run(name: &'static str, command: &mut Command) -> Result<String, DrgnError> {
    let output = command.output();
    let output = output.map_err(|cause| DrgnError::Start(name, cause))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(DrgnError::Failed(name, errors))
        }
    }
}
