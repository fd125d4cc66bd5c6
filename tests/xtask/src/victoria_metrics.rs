//! Debian's `VictoriaMetrics`, for this machine's tests: Debian's Prometheus takes no OTLP.

use std::path::PathBuf;

use lab::PackageError;

/// The first release that has it.
const DEBIAN: &str = "trixie";

/// Its program, and its package.
pub const PROGRAM: &str = "victoria-metrics";

/// The program.
///
/// # Errors
/// If its package can't be fetched.
pub fn program() -> Result<PathBuf, PackageError> {
    let package = lab::ensure_package(DEBIAN, PROGRAM)?;
    Ok(package.join("usr/bin").join(PROGRAM))
}
