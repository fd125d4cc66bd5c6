//! Debian's stock cloud kernels, unpacked in the cache; never installed.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use lzma_rust2::XzReader;
use serde::{Deserialize, Serialize};

use crate::apt::{AptError, Release};
use crate::cache::{self, CacheError};
use crate::tool::{self, ToolError};

/// The package that always depends on a release's current cloud kernel.
const META_PACKAGE: &str = "linux-image-cloud-amd64";
const IMAGE_PREFIX: &str = "linux-image-";

/// Why a kernel is missing.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// It can't be fetched.
    #[error("can't fetch a kernel package")]
    Fetch(#[from] AptError),
    /// Its package can't be unpacked.
    #[error("can't unpack a kernel package")]
    Unpack(#[source] ToolError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// One kernel as its package has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// As `uname -r` says: `6.1.0-56-cloud-amd64`.
    pub release: String,
    /// The version of its package: `6.1.192-2`.
    pub package_version: String,
    /// The bzImage.
    pub vmlinuz: PathBuf,
    /// The folder that holds `kernel/...` with the modules.
    pub modules: PathBuf,
}

impl Kernel {
    /// A module's file by its path below `kernel/` without an ending, such as `drivers/net/tun`.
    /// Debian 13 packs it with xz; it is unpacked here.
    ///
    /// # Errors
    /// If the kernel has no such module, or its file is damaged.
    pub fn module(&self, path: &str) -> Result<Vec<u8>, ModuleError> {
        let plain = self.modules.join("kernel").join(format!("{path}.ko"));
        if let Ok(bytes) = fs::read(&plain) {
            return Ok(bytes);
        }
        let packed = plain.with_extension("ko.xz");
        let unpack = || {
            let file = BufReader::new(File::open(&packed)?);
            let mut bytes = Vec::new();
            XzReader::new(file, false).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        unpack().map_err(|source| ModuleError {
            release: self.release.clone(),
            path: packed.clone(),
            source,
        })
    }
}

/// A module that can't be had.
#[derive(Debug, thiserror::Error)]
#[error("kernel {release} has no module that can be read at {path} or without .xz", path = .path.display())]
pub struct ModuleError {
    release: String,
    path: PathBuf,
    source: io::Error,
}

/// The kernels that the tests use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernels {
    /// Debian 12's, version 6.1. The lab machine runs it too.
    pub v6_1: Kernel,
    /// Debian 13's, version 6.12.
    pub v6_12: Kernel,
}

/// Finds the kernels in the cache, or fetches what Debian has now. Cached ones are used as they
/// are, without asking for newer ones; delete `kernels` in the cache to get those.
///
/// # Errors
/// If a package can't be fetched or unpacked.
pub fn ensure_kernels() -> Result<Kernels, KernelError> {
    let cache = cache::cache_dir()?;
    Ok(Kernels {
        v6_1: ensure(&cache, "bookworm")?,
        v6_12: ensure(&cache, "trixie")?,
    })
}

fn ensure(cache: &Path, debian: &'static str) -> Result<Kernel, KernelError> {
    let home = cache.join("kernels").join(debian);
    if let Some(kernel) = cached(&home) {
        return Ok(kernel);
    }
    let _lock = cache::lock(cache, "kernels")?;
    // Another process may have fetched it while this one waited.
    match cached(&home) {
        Some(kernel) => Ok(kernel),
        None => fetch(cache, debian, &home),
    }
}

/// The kernel that the manifest names, if all of it is there.
fn cached(home: &Path) -> Option<Kernel> {
    let manifest = fs::read(home.join("manifest.json")).ok()?;
    let kernel: Kernel = serde_json::from_slice(&manifest).ok()?;
    (kernel.vmlinuz.is_file() && kernel.modules.is_dir()).then_some(kernel)
}

fn fetch(cache: &Path, debian: &'static str, home: &Path) -> Result<Kernel, KernelError> {
    let work = cache::work_dir(&cache.join("kernels"), debian)?;
    let release = Release::open(cache, debian)?;
    let package = release.dependency(META_PACKAGE, IMAGE_PREFIX)?;
    let deb = release.download(&package, &work)?;
    let mut unpack = Command::new("dpkg-deb");
    tool::run(unpack.arg("--extract").arg(&deb).arg(&work)).map_err(KernelError::Unpack)?;
    let mut version = Command::new("dpkg-deb");
    let version = tool::run(version.arg("--field").arg(&deb).arg("Version"));

    let uname = package.trim_start_matches(IMAGE_PREFIX).to_owned();
    // Debian 13 has its modules under /usr/lib only.
    let modules = ["lib/modules", "usr/lib/modules"].map(|dir| format!("{dir}/{uname}"));
    let vmlinuz = format!("boot/vmlinuz-{uname}");
    let modules = modules.iter().find(|dir| work.join(dir).is_dir());
    let (true, Some(modules)) = (work.join(&vmlinuz).is_file(), modules) else {
        let problem = format!("no {vmlinuz}, or no modules folder");
        return Err(release.unexpected(&package, problem).into());
    };
    let kernel = Kernel {
        package_version: version.map_err(KernelError::Unpack)?.trim().to_owned(),
        vmlinuz: home.join(&vmlinuz),
        modules: home.join(modules),
        release: uname,
    };
    // A struct of strings always serializes.
    let manifest = serde_json::to_vec_pretty(&kernel).unwrap_or_default();
    cache::write(&work.join("manifest.json"), &manifest)?;
    fs::remove_file(&deb).map_err(|e| cache::io_error("remove", &deb, e))?;
    cache::remove_dir(home)?;
    cache::rename(&work, home)?;
    Ok(kernel)
}
