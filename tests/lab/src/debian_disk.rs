//! A disk with Debian on it, made from Debian's packages once: systemd, cloud-init, and little else.

use std::path::PathBuf;
use std::process::Command;

use crate::apt::{AptError, Release};
use crate::cache::{self, CacheError};
use crate::progress::step;
use crate::tool::{self, ToolError};

/// The Debian release on it.
const RELEASE: &str = "trixie";

const SCRIPT: &str = include_str!("../build-debian-disk.sh");
/// What the script makes: the disk, and the list of packages with their versions.
const DISK: &str = "debian.qcow2";
const PACKAGES: &str = "packages";

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
pub enum DebianDiskError {
    /// The lists of packages can't be read.
    #[error("can't read what packages Debian has")]
    Packages(#[from] AptError),
    /// It can't be made.
    #[error(
        "can't make a disk with Debian; run deploy/setup.sh, which installs what that needs, then this again"
    )]
    Build(#[source] ToolError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Finds the disk in the cache, or makes it there, which takes less than a minute and the time to fetch 70 MB. One that
/// is cached for this script has the packages of that time, and needs no network.
///
/// It is a qcow2 image of a disk with one partition. Root's password is `vmprobe`.
///
/// # Errors
/// If packages can't be fetched, or the disk can't be made.
pub fn ensure_debian_disk() -> Result<PathBuf, DebianDiskError> {
    let cache = cache::cache_dir()?;
    let key = cache::key(&[RELEASE.as_bytes(), SCRIPT.as_bytes()]);
    let home = cache.join(format!("debian-disk-{key}"));
    let disk = home.join(DISK);
    if disk.is_file() {
        return Ok(disk);
    }
    let _lock = cache::lock(&cache, "debian-disk")?;
    // Another process may have made it while this one waited.
    if disk.is_file() {
        return Ok(disk);
    }
    let work = cache::work_dir(&cache, "debian-disk-build")?;
    let script = work.join("build-debian-disk.sh");
    cache::write(&script, SCRIPT.as_bytes())?;
    let release = Release::open(&cache, RELEASE)?;
    // Outside the build folder, so that it outlives the next try's clean-up of that folder.
    let log = cache.join("debian-disk-build.log");
    step(&format!(
        "making a disk with Debian {RELEASE} (once; log: {})",
        log.display()
    ));
    let mut command = Command::new("sh");
    command.arg(&script).arg(RELEASE);
    command.arg(release.sources()).arg(&work);
    tool::run_logged(&mut command, &log).map_err(DebianDiskError::Build)?;

    let ready = work.join("ready");
    cache::make_dir(&ready)?;
    for file in [DISK, PACKAGES] {
        cache::rename(&work.join(file), &ready.join(file))?;
    }
    cache::remove_dir(&home)?;
    cache::rename(&ready, &home)?;
    cache::remove_dir(&work)?;
    Ok(disk)
}
