//! A kernel that tests itself and finds faults of its own: `KUnit`, lockdep, KASAN and the watchdogs. It has debug
//! information, and scripts for gdb. It is built from Debian's source package, once.
//!
//! Its configuration is `test-kernel.config`. Debian's stock kernels have none of that built in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::apt::{AptError, Release};
use crate::cache::{self, CacheError};
use crate::progress::step;
use crate::tool::{self, ToolError};

/// The Debian release whose kernel is built.
const RELEASE: &str = "trixie";
/// Its source package.
const PACKAGE: &str = "linux";

const CONFIG: &str = include_str!("../test-kernel.config");
const SCRIPT: &str = include_str!("../build-kernel.sh");
const IMAGE: &str = "bzImage";
const DEBUG: &str = "debug";

/// Why there is no test kernel.
#[derive(Debug, thiserror::Error)]
pub enum TestKernelError {
    /// Its source can't be fetched.
    #[error("can't fetch the source of the test kernel")]
    Source(#[from] AptError),
    /// It doesn't build.
    #[error(
        "can't build the test kernel; run deploy/setup.sh, which installs what that needs, then this again"
    )]
    Build(#[source] ToolError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A kernel with `KUnit`, lockdep and KASAN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestKernel {
    /// The bzImage.
    pub vmlinuz: PathBuf,
    /// The folder with its `vmlinux`, which has debug information, and with `vmlinux-gdb.py` and the scripts that this
    /// loads.
    pub debug: PathBuf,
    /// The source that it was built from: `linux_6.12.117.orig.tar.xz`.
    pub source: String,
}

/// The source of a built kernel, in a file beside it in the cache.
#[derive(Debug, Serialize, Deserialize)]
struct Origin {
    source: String,
}

/// Finds the test kernel in the cache, or builds it there: about eight minutes on two cores, once. One that is cached
/// for this configuration and this build script needs no network.
///
/// # Errors
/// If the source can't be fetched, or it doesn't build.
pub fn ensure_test_kernel() -> Result<TestKernel, TestKernelError> {
    let cache = cache::cache_dir()?;
    let key = cache::key(&[CONFIG.as_bytes(), SCRIPT.as_bytes()]);
    let home = cache.join(format!("test-kernel-{key}"));
    if let Some(kernel) = cached(&home) {
        return Ok(kernel);
    }
    let _lock = cache::lock(&cache, "test-kernel")?;
    // Another process may have built it while this one waited.
    if let Some(kernel) = cached(&home) {
        return Ok(kernel);
    }
    build(&cache, &home)
}

fn cached(home: &Path) -> Option<TestKernel> {
    let origin = fs::read(home.join("origin.json")).ok()?;
    let Origin { source } = serde_json::from_slice(&origin).ok()?;
    let vmlinuz = home.join(IMAGE);
    vmlinuz.is_file().then(|| TestKernel {
        vmlinuz,
        debug: home.join(DEBUG),
        source,
    })
}

fn build(cache: &Path, home: &Path) -> Result<TestKernel, TestKernelError> {
    let work = cache::work_dir(cache, "test-kernel-build")?;
    let fetched = work.join("source");
    cache::make_dir(&fetched)?;
    let release = Release::open(cache, RELEASE)?;
    step("fetching the source of the test kernel (150 MB)");
    let archive = release.any_upstream_source(PACKAGE, &fetched)?;
    drop(release);

    let (script, config) = (work.join("build-kernel.sh"), work.join("wanted.config"));
    cache::write(&script, SCRIPT.as_bytes())?;
    cache::write(&config, CONFIG.as_bytes())?;
    // Outside the build folder, so that it outlives the next try's clean-up of that folder.
    let log = cache.join("test-kernel-build.log");
    step(&format!(
        "building the test kernel (about 8 minutes, once; log: {})",
        log.display()
    ));
    let mut command = Command::new("sh");
    command.arg(&script).arg(&archive).arg(&config).arg(&work);
    tool::run_logged(&mut command, &log).map_err(TestKernelError::Build)?;

    let ready = work.join("ready");
    cache::make_dir(&ready)?;
    for file in [IMAGE, DEBUG, "config"] {
        cache::rename(&work.join(file), &ready.join(file))?;
    }
    let source = archive.file_name().unwrap_or_default();
    let source = source.to_string_lossy().into_owned();
    // A struct of one string always serializes.
    let origin = serde_json::to_vec_pretty(&Origin { source }).unwrap_or_default();
    cache::write(&ready.join("origin.json"), &origin)?;
    cache::remove_dir(home)?;
    cache::rename(&ready, home)?;
    cache::remove_dir(&work)?;
    cached(home).ok_or_else(|| {
        let lost = std::io::Error::from(std::io::ErrorKind::NotFound);
        TestKernelError::Cache(cache::io_error("find what was built in", home, lost))
    })
}
