//! Debian's gdb for the lab machine, with the libraries and the files of Python that it needs.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::PackageError;

use crate::python::{self, Loaded, PRINT_LOADED};

const PACKAGE: &str = "gdb";
const DEBIAN: &str = "bookworm";
/// The modules of Python's own that the kernel's scripts import today, and the encoding for a system without a locale.
/// gdb loads the rest by itself.
const IMPORTS: &str = "import binascii, encodings.ascii, math, os, re, struct, traceback, zlib";
/// The C library's converters of the guest's characters, in the package libc6.
const CONVERSIONS: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache",
    "/usr/lib/x86_64-linux-gnu/gconv/UTF-32.so",
];
/// Where gdb's own files are in the package, and where it looks for them when it is in `/bin`.
const DATA: (&str, &str) = ("usr/share/gdb", "/share/gdb");

/// Why there is no gdb.
#[derive(Debug, thiserror::Error)]
pub enum GdbError {
    /// Its package can't be had.
    #[error("there is no gdb")]
    Package(#[from] PackageError),
    /// A program can't be started.
    #[error("can't start {0} (deploy/setup.sh installs what it needs)")]
    Start(String, #[source] io::Error),
    /// A library isn't there.
    #[error("the library {0} is missing; run deploy/setup.sh, which installs what gdb needs")]
    Library(String),
}

/// gdb's program.
///
/// # Errors
/// If it can't be fetched.
pub fn program() -> Result<PathBuf, GdbError> {
    Ok(lab::ensure_package(DEBIAN, PACKAGE)?.join("usr/bin/gdb"))
}

/// Returns gdb, its libraries and the files of Python that it loads, each with its path in the lab machine.
///
/// # Errors
/// If it isn't there, or lacks a library.
pub fn in_lab() -> Result<Vec<(PathBuf, String)>, GdbError> {
    let package = lab::ensure_package(DEBIAN, PACKAGE)?;
    let gdb = package.join("usr/bin/gdb");
    let print = format!("python exec({:?})", format!("{IMPORTS}\n{PRINT_LOADED}"));
    let listed = run(&gdb.to_string_lossy(), &["-nx", "-batch", "-ex", &print])?;
    let data = package.join(DATA.0);
    let inside = |path: &Path| match path.strip_prefix(&data) {
        Ok(rest) => format!("{}/{}", DATA.1, rest.display()),
        Err(_) => path.display().to_string(),
    };
    let listed = listed.lines().map(PathBuf::from);
    let Loaded {
        mut files,
        mut libraries,
    } = python::loaded(listed, inside)?;
    libraries.extend(libraries_of(&gdb.to_string_lossy())?);
    libraries.extend(CONVERSIONS.map(str::to_owned));
    files.push((gdb, "/bin/gdb".to_owned()));
    files.extend(
        libraries
            .into_iter()
            .map(|path| (PathBuf::from(&path), path)),
    );
    Ok(files)
}

/// The paths of all libraries that a program or a library needs.
///
/// # Errors
/// If one isn't there.
pub fn libraries_of(path: &str) -> Result<BTreeSet<String>, GdbError> {
    libraries(&run("ldd", &[path])?)
}

/// The paths of the libraries that `ldd` lists.
fn libraries(listed: &str) -> Result<BTreeSet<String>, GdbError> {
    let mut paths = BTreeSet::new();
    for line in listed.lines() {
        let (name, path) = line.split_once(" => ").unwrap_or(("", line));
        if path.contains("not found") {
            return Err(GdbError::Library(name.trim().to_owned()));
        }
        // The kernel's own library (vDSO) has no path.
        let path = path.split_whitespace().next().unwrap_or_default();
        if path.starts_with('/') {
            paths.insert(path.to_owned());
        }
    }
    Ok(paths)
}

fn run(program: &str, arguments: &[&str]) -> Result<String, GdbError> {
    let output: io::Result<Output> = Command::new(program).args(arguments).output();
    let output = output.map_err(|cause| GdbError::Start(program.to_owned(), cause))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_all_its_libraries_and_its_loader() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                      \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f01)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";
        let found: Vec<String> = libraries(listed).unwrap().into_iter().collect();
        let expected = [
            "/lib/x86_64-linux-gnu/libz.so.1",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(found, expected);
        let missing = libraries("\tlibz.so.1 => not found\n").unwrap_err();
        assert!(matches!(missing, GdbError::Library(name) if name == "libz.so.1"));
    }
}
