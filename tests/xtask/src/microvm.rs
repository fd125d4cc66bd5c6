//! Debian's QEMU of the small machine `microvm`, for the comparison of boots.

use std::path::PathBuf;

use lab::PackageError;

use crate::gdb::{self, GdbError};

const PACKAGE: &str = "qemu-system-x86";
const DEBIAN: &str = "bookworm";
/// The program, which has few machines and libraries, and its name among the guests' files.
const PROGRAM: &str = "usr/bin/qemu-system-x86_64-microvm";
pub const NAME: &str = "qemu-microvm";
/// The firmware, and the code that loads a kernel by PVH, of the package qemu-system-data.
const FIRMWARE: [&str; 2] = [
    "/usr/share/qemu/bios-microvm.bin",
    "/usr/share/qemu/pvh.bin",
];

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum MicrovmError {
    /// Its package can't be had.
    #[error("there is no QEMU to compare with")]
    Package(#[from] PackageError),
    /// A library is missing.
    #[error("libraries of QEMU can't be found")]
    Libraries(#[from] GdbError),
}

/// The program.
///
/// # Errors
/// If it can't be fetched.
pub fn program() -> Result<PathBuf, MicrovmError> {
    Ok(lab::ensure_package(DEBIAN, PACKAGE)?.join(PROGRAM))
}

/// Returns the program, its libraries and its firmware, each with its path in the lab machine, where the guests' files
/// are in `folder`.
///
/// # Errors
/// If it isn't there, or lacks a library.
pub fn in_lab(folder: &str) -> Result<Vec<(PathBuf, String)>, MicrovmError> {
    let program = program()?;
    let libraries = gdb::libraries_of(&program.to_string_lossy())?;
    let same = |path: String| (PathBuf::from(&path), path);
    let firmware = FIRMWARE.map(str::to_owned);
    let mut files = vec![(program, format!("{folder}/{NAME}"))];
    files.extend(libraries.into_iter().chain(firmware).map(same));
    Ok(files)
}
