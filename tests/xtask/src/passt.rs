//! Debian's passt, for this machine's tests and for the lab machine's.

use std::path::PathBuf;

use lab::PackageError;

use crate::gdb::{self, GdbError};

const PACKAGE: &str = "passt";
const DEBIAN: &str = "bookworm";

/// Why there is no passt.
#[derive(Debug, thiserror::Error)]
pub enum PasstError {
    /// Its package can't be had.
    #[error("there is no passt")]
    Package(#[from] PackageError),
    /// A library is missing.
    #[error("libraries of passt can't be found")]
    Libraries(#[from] GdbError),
}

/// The program.
///
/// # Errors
/// If it can't be fetched.
pub fn program() -> Result<PathBuf, PasstError> {
    Ok(lab::ensure_package(DEBIAN, PACKAGE)?.join("usr/bin/passt"))
}

/// Returns the program and its libraries, each with its path in the lab machine.
///
/// # Errors
/// If it isn't there, or lacks a library.
pub fn in_lab() -> Result<Vec<(PathBuf, String)>, PasstError> {
    let passt = program()?;
    let libraries = gdb::libraries_of(&passt.to_string_lossy())?;
    let mut files = vec![(passt, "/bin/passt".to_owned())];
    files.extend(
        libraries
            .into_iter()
            .map(|path| (PathBuf::from(&path), path)),
    );
    Ok(files)
}
