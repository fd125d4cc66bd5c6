//! Debian's Prometheus, for this machine's tests.

use std::path::PathBuf;

use lab::PackageError;

const PACKAGE: &str = "prometheus";
const DEBIAN: &str = "bookworm";

/// Its programs: the server, and the one that checks metrics and rules.
pub const PROGRAMS: [&str; 2] = ["prometheus", "promtool"];

/// One of them.
///
/// # Errors
/// If its package can't be fetched.
pub fn program(name: &str) -> Result<PathBuf, PackageError> {
    let package = lab::ensure_package(DEBIAN, PACKAGE)?;
    Ok(package.join("usr/bin").join(name))
}
