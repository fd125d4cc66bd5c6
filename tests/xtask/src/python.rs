//! Files that Python has loaded, for the lab machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::gdb::{self, GdbError};

/// A part of a program: prints the files of all modules that are loaded.
pub const PRINT_LOADED: &str = "\
import sys
for module in list(sys.modules.values()):
    for name in (getattr(module, '__file__', None), getattr(module, '__cached__', None)):
        if name:
            print(name)
";

/// The files that Python has loaded.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Its files, each with its path in the lab machine.
    pub files: Vec<(PathBuf, String)>,
    /// The libraries that they need.
    pub libraries: BTreeSet<String>,
}

/// Returns those of some files that exist. `inside` returns the path of each in the lab machine.
///
/// # Errors
/// A library is missing.
pub fn loaded(
    all: impl Iterator<Item = PathBuf>,
    inside: impl Fn(&Path) -> String,
) -> Result<Loaded, GdbError> {
    let mut loaded = Loaded::default();
    for path in all.filter(|path| path.is_file()) {
        if path.extension().is_some_and(|extension| extension == "so") {
            loaded
                .libraries
                .extend(gdb::libraries_of(&path.to_string_lossy())?);
        }
        let place = inside(&path);
        loaded.files.push((path, place));
    }
    Ok(loaded)
}
