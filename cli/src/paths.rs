//! Paths as the protocol takes them.

use std::ffi::OsString;
use std::io;
use std::path::{Path, absolute};

/// A path that can't be told a server.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error("the path {} is not UTF-8, which the protocol wants: rename it", .path.display())]
    NotUtf8 { path: OsString },
    #[error("can't find the folder this command was started in: {0}")]
    CurrentFolder(io::Error),
}

/// The path from the root on: the server may have been started elsewhere, and what the user typed counts from here.
pub fn text(path: &Path) -> Result<String, PathError> {
    let absolute = absolute(path).map_err(PathError::CurrentFolder)?;
    absolute
        .into_os_string()
        .into_string()
        .map_err(|path| PathError::NotUtf8 { path })
}
