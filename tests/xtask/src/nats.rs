//! Debian's NATS server, for this machine's tests.

use std::path::PathBuf;

use lab::PackageError;

const PACKAGE: &str = "nats-server";
const DEBIAN: &str = "bookworm";

/// The program's name.
pub const PROGRAM: &str = "nats-server";

/// The program.
///
/// # Errors
/// If its package can't be fetched.
pub fn program() -> Result<PathBuf, PackageError> {
    let package = lab::ensure_package(DEBIAN, PACKAGE)?;
    Ok(package.join("usr/sbin").join(PROGRAM))
}
