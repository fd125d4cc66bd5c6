//! The modules of drivers that the kernel hasn't built in.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
};

use rustix::io::Errno;
use rustix::system::finit_module;
use thiserror::Error;
use vmprobe_init::MODULES;

/// A module that can't be loaded.
#[derive(Debug, Error)]
#[error("can't load the module {path} (is it of this very kernel?)")]
pub struct ModuleError {
    path: PathBuf,
    source: io::Error,
}

/// Loads all modules of the initramfs in the order of their names. One that the kernel has already is fine.
pub fn load_all() -> Result<(), ModuleError> {
    let Ok(folder) = fs::read_dir(MODULES) else {
        return Ok(());
    };
    let mut paths: Vec<PathBuf> = folder
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    for path in paths {
        load(&path).map_err(|source| ModuleError { path, source })?;
    }
    Ok(())
}

fn load(path: &PathBuf) -> io::Result<()> {
    match finit_module(File::open(path)?, c"", 0) {
        Err(Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}
