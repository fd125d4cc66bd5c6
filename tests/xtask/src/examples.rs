//! The clients in other languages, with the packages that they use. The cache has each package once, by its lock file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{CacheError, PypiError, cache_dir, ensure_pypi, key, put_in_place};

use crate::root;

/// Why they can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ExamplesError {
    /// There is no cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Packages of Python's can't be had.
    #[error(transparent)]
    Pypi(#[from] PypiError),
    /// A program can't be started.
    #[error("can't start {0} (deploy/setup.sh installs it)")]
    Start(&'static str, #[source] io::Error),
    /// A program failed.
    #[error("{0} failed: {1}")]
    Failed(&'static str, String),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
}

/// Copies the examples into a folder, each with its packages beside it.
///
/// # Errors
/// If packages can't be fetched, or files can't be copied.
pub fn put_into(folder: &Path) -> Result<(), ExamplesError> {
    let node = copy(folder, "node")?;
    link(
        &node.join("node_modules"),
        &node_packages()?.join("node_modules"),
    )?;
    let python = copy(folder, "python")?;
    let list = python.join("requirements.txt");
    let list = fs::read_to_string(&list).map_err(failed("read", &list))?;
    let packages: Vec<_> = list.lines().collect();
    link(&python.join("packages"), &ensure_pypi(&packages)?)
}

/// The packages of the client for Node.js, as its lock file has them.
fn node_packages() -> Result<PathBuf, ExamplesError> {
    const FILES: [&str; 2] = ["package.json", "package-lock.json"];
    let example = source("node");
    ensure(
        "node-client",
        &FILES.map(|name| example.join(name)),
        |folder| {
            for name in FILES {
                let copied = fs::copy(example.join(name), folder.join(name));
                copied.map_err(failed("copy", &example.join(name)))?;
            }
            let mut npm = Command::new("npm");
            npm.args([
                "ci",
                "--silent",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
            ]);
            run("npm", npm.current_dir(folder))
        },
    )
}

/// Returns a folder of the cache that depends on some files. If it isn't there, `make` makes it.
fn ensure(
    name: &str,
    files: &[PathBuf],
    make: impl FnOnce(&Path) -> Result<(), ExamplesError>,
) -> Result<PathBuf, ExamplesError> {
    let read = |path: &PathBuf| fs::read(path).map_err(failed("read", path));
    let contents = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let folder = cache_dir()?.join(format!("{name}-{}", key(&contents)));
    if folder.is_dir() {
        return Ok(folder);
    }
    let unfinished = folder.with_extension(format!("{}.new", std::process::id()));
    fs::create_dir_all(&unfinished).map_err(failed("make", &unfinished))?;
    make(&unfinished)?;
    put_in_place(&unfinished, &folder).map_err(failed("put in place", &folder))?;
    Ok(folder)
}

fn source(name: &str) -> PathBuf {
    root().join("examples").join(name)
}

/// Copies the files of an example, and removes an older copy in the folder.
fn copy(folder: &Path, name: &str) -> Result<PathBuf, ExamplesError> {
    let (from, to) = (source(name), folder.join("examples").join(name));
    match fs::remove_dir_all(&to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", &to)(error));
        }
        _ => {}
    }
    fs::create_dir_all(&to).map_err(failed("make", &to))?;
    for entry in fs::read_dir(&from).map_err(failed("read", &from))? {
        let entry = entry.map_err(failed("read", &from))?;
        // Folders are packages that a developer has installed there.
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let copied = fs::copy(entry.path(), to.join(entry.file_name()));
            copied.map_err(failed("copy", &entry.path()))?;
        }
    }
    Ok(to)
}

fn link(from: &Path, to: &Path) -> Result<(), ExamplesError> {
    std::os::unix::fs::symlink(to, from).map_err(failed("link", from))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ExamplesError {
    let path = path.to_owned();
    move |error| ExamplesError::Io(what, path, error)
}

fn run(name: &'static str, command: &mut Command) -> Result<(), ExamplesError> {
    let output = command.output();
    let output = output.map_err(|cause| ExamplesError::Start(name, cause))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            Err(ExamplesError::Failed(name, said))
        }
    }
}
