//! Programs of Debian packages, unpacked in the cache; never installed, as some can't be beside others.

use std::path::PathBuf;
use std::process::Command;

use crate::apt::{AptError, Release};
use crate::cache::{self, CacheError};
use crate::tool::{self, ToolError};

/// Why a package isn't there.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// It can't be fetched.
    #[error("can't fetch a package")]
    Fetch(#[from] AptError),
    /// It can't be unpacked.
    #[error("can't unpack a package")]
    Unpack(#[source] ToolError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// The folder with the files of a package of the Debian release with this code name, such as `usr/bin/...`.
///
/// # Errors
/// If it can't be fetched or unpacked.
pub fn ensure_package(debian: &'static str, package: &str) -> Result<PathBuf, PackageError> {
    let cache = cache::cache_dir()?;
    let packages = cache.join("packages");
    let home = packages.join(format!("{debian}-{package}"));
    if home.is_dir() {
        return Ok(home);
    }
    let _lock = cache::lock(&cache, "packages")?;
    // Another process may have fetched it while this one waited.
    if home.is_dir() {
        return Ok(home);
    }
    cache::make_dir(&packages)?;
    let work = cache::work_dir(&packages, package)?;
    let deb = Release::open(&cache, debian)?.download(package, &work)?;
    let files = work.join("files");
    let mut unpack = Command::new("dpkg-deb");
    tool::run(unpack.arg("--extract").arg(&deb).arg(&files)).map_err(PackageError::Unpack)?;
    cache::rename(&files, &home)?;
    cache::remove_dir(&work)?;
    Ok(home)
}
