//! drgn for the lab machine, with the files of Python that it needs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{PypiError, ensure_pypi, run_python};

use crate::gdb::{self, GdbError};
use crate::python::{self, Loaded, PRINT_LOADED};

/// The package and its version.
const PACKAGE: &str = "drgn==0.3.0";
/// Loads all of drgn that is used, and prints Python's own program.
const LOAD: &str = "\
import sys
import drgn, drgn.helpers.linux.kallsyms
print(sys._base_executable)
";

/// Why there is no drgn.
#[derive(Debug, thiserror::Error)]
pub enum DrgnError {
    /// It can't be fetched, or doesn't load.
    #[error(transparent)]
    Pypi(#[from] PypiError),
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
    let installed = ensure_pypi(&[PACKAGE])?;
    let mut python = Command::new("python3");
    python
        .args(["-c", &format!("{LOAD}{PRINT_LOADED}")])
        .env("PYTHONPATH", &installed)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let listed = run_python(&mut python)?;
    let mut lines = listed.lines();
    let program = lines.next().unwrap_or_default().to_owned();
    let inside = |path: &Path| match path.strip_prefix(&installed) {
        Ok(rest) => format!("{folder}/{}", rest.display()),
        Err(_) => path.display().to_string(),
    };
    let mut loaded: BTreeSet<PathBuf> = lines.map(PathBuf::from).collect();
    // drgn's own libraries, which its own loader finds.
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
