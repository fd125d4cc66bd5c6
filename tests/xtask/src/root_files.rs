//! Root file systems for commands in guests: a shell, and a disk with one.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::PackageError;

/// The package of a program that is a shell and the tools that a shell needs, without libraries.
const PACKAGE: &str = "busybox-static";
const DEBIAN: &str = "bookworm";
/// The program's further names.
pub const NAMES: [&str; 6] = ["sh", "cat", "echo", "mkdir", "printf", "sleep"];
/// Size of the disk, as mke2fs takes it.
const SIZE: &str = "16M";

/// Why they aren't there.
#[derive(Debug, thiserror::Error)]
pub enum RootFilesError {
    /// The package can't be had.
    #[error("there is no busybox")]
    Package(#[from] PackageError),
    /// A file operation failed.
    #[error("can't make {path}", path = .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// The disk can't be made.
    #[error("mke2fs, of the package e2fsprogs, can't make a disk: {0}")]
    Disk(String),
}

/// The program.
///
/// # Errors
/// If it can't be fetched.
pub fn busybox() -> Result<PathBuf, RootFilesError> {
    Ok(lab::ensure_package(DEBIAN, PACKAGE)?.join("bin/busybox"))
}

/// A disk whose root file system has the shell, made once.
///
/// # Errors
/// If it can't be made.
pub fn image(cached: &Path) -> Result<PathBuf, RootFilesError> {
    let image = cached.join("root.img");
    if image.is_file() {
        return Ok(image);
    }
    let folder = cached.join("root");
    let bin = folder.join("bin");
    let program = busybox()?;
    let fill = || {
        let _left_by_one_that_was_stopped = fs::remove_dir_all(&folder);
        for name in ["bin", "dev", "etc", "proc", "run", "sys", "tmp"] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::copy(&program, bin.join("busybox"))?;
        for name in NAMES {
            symlink("busybox", bin.join(name))?;
        }
        fs::write(folder.join("etc/motd"), "of the disk\n")
    };
    fill().map_err(|error| RootFilesError::Io(folder.clone(), error))?;
    let unfinished = cached.join("root.img.new");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-d"]);
    mke2fs.arg(&folder).arg(&unfinished).arg(SIZE);
    let made = mke2fs.output();
    let made = made.map_err(|error| RootFilesError::Disk(error.to_string()))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        return Err(RootFilesError::Disk(said.trim().to_owned()));
    }
    fs::rename(&unfinished, &image).map_err(|error| RootFilesError::Io(image.clone(), error))?;
    Ok(image)
}
