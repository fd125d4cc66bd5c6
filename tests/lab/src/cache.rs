//! The cache: files that take long to make or fetch and are kept between runs, outside the clone.
//!
//! Everything in it can be deleted at any time; it is made again.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::progress::step;

/// Why the cache can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Neither environment variable names a folder.
    #[error("no place for the cache: set HOME or XDG_CACHE_HOME")]
    NoHome,
    /// A file operation failed.
    #[error("can't {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// The cache folder, `${XDG_CACHE_HOME:-~/.cache}/vmprobe`, which this makes if need be.
///
/// # Errors
/// If there is no home folder or the cache can't be made there.
pub fn cache_dir() -> Result<PathBuf, CacheError> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let base = base.or_else(|| set("HOME").map(|home| home.join(".cache")));
    let path = base.ok_or(CacheError::NoHome)?.join("vmprobe");
    make_dir(&path)?;
    Ok(path)
}

/// Gives a complete folder its name in the cache. If another process has finished first, its folder stays and this one
/// is removed.
///
/// # Errors
/// It can't be named so, and there is none of that name.
pub fn put_in_place(unfinished: &Path, folder: &Path) -> io::Result<()> {
    match fs::rename(unfinished, folder) {
        Err(_) if folder.is_dir() => {
            let _only_wanted_once = fs::remove_dir_all(unfinished);
            Ok(())
        }
        renamed => renamed,
    }
}

/// Holds a lock in the cache; it is released when this is dropped, or when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Waits for the cache's lock of this name, so that only one process at a time makes the thing that it protects.
pub(crate) fn lock(cache: &Path, name: &str) -> Result<Lock, CacheError> {
    let path = cache.join(format!("{name}.lock"));
    let io = |source| CacheError::Io {
        action: "lock",
        path: path.clone(),
        source,
    };
    let file = File::create(&path).map_err(io)?;
    if file.try_lock().is_err() {
        step(&format!("waiting for another process that makes {name}"));
        file.lock().map_err(io)?;
    }
    Ok(Lock { _file: file })
}

/// Makes an empty folder to work in, `parent/prefix-PID`, and removes others of this prefix. The caller holds the lock
/// of what it makes there, so those others were left by processes that were interrupted.
///
/// Each process has its own name because a killed one may have left children that still write.
pub(crate) fn work_dir(parent: &Path, prefix: &str) -> Result<PathBuf, CacheError> {
    make_dir(parent)?;
    let prefix = format!("{prefix}-");
    let left = fs::read_dir(parent).map_err(|e| io_error("read the folder", parent, e))?;
    for entry in left.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            remove_dir(&entry.path())?;
        }
    }
    let path = parent.join(format!("{prefix}{}", std::process::id()));
    make_dir(&path)?;
    Ok(path)
}

pub(crate) fn make_dir(path: &Path) -> Result<(), CacheError> {
    fs::create_dir_all(path).map_err(|source| io_error("make the folder", path, source))
}

pub(crate) fn remove_dir(path: &Path) -> Result<(), CacheError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove the folder", path, error))
        }
        _ => Ok(()),
    }
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), CacheError> {
    fs::rename(from, to).map_err(|source| io_error("put in place", to, source))
}

pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), CacheError> {
    fs::write(path, bytes).map_err(|source| io_error("write", path, source))
}

pub(crate) fn io_error(action: &'static str, path: &Path, source: io::Error) -> CacheError {
    CacheError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// A short name for some inputs: FNV-1a, 64 bits. It distinguishes versions of our own files; it doesn't protect
/// against anybody.
#[must_use]
pub fn key(parts: &[&[u8]]) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // The length keeps ("ab", "c") and ("a", "bc") apart.
        for byte in part.len().to_le_bytes().iter().chain(*part) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_every_part_and_where_it_ends() {
        let keys = [
            key(&[b"ab", b"c"]),
            key(&[b"a", b"bc"]),
            key(&[b"abc"]),
            key(&[b"ab", b"d"]),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b));
        }
        assert_eq!(key(&[b"ab", b"c"]), keys[0]);
    }

    #[test]
    fn a_work_folder_is_empty_and_what_an_interrupted_process_left_is_gone() {
        let parent = std::env::temp_dir().join(format!("vmprobe-work-{}", std::process::id()));
        let (left, other) = (parent.join("thing-1"), parent.join("things"));
        for dir in [&left, &other] {
            fs::create_dir_all(dir).unwrap();
        }
        let work = work_dir(&parent, "thing").unwrap();
        assert_eq!(fs::read_dir(work).unwrap().count(), 0);
        assert!(!left.exists() && other.exists());
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn a_folder_that_another_process_has_put_in_place_stays() {
        let parent = std::env::temp_dir().join(format!("vmprobe-place-{}", std::process::id()));
        let (first, second) = (parent.join("first"), parent.join("second"));
        for unfinished in [&first, &second] {
            fs::create_dir_all(unfinished).unwrap();
            fs::write(
                unfinished.join("file"),
                unfinished.as_os_str().as_encoded_bytes(),
            )
            .unwrap();
        }
        let folder = parent.join("thing");
        put_in_place(&first, &folder).unwrap();
        put_in_place(&second, &folder).unwrap();
        let kept = fs::read(folder.join("file")).unwrap();
        assert_eq!(kept, first.as_os_str().as_encoded_bytes());
        assert!(!first.exists() && !second.exists());
        assert!(put_in_place(&second, &parent.join("other")).is_err());
        fs::remove_dir_all(&parent).unwrap();
    }
}
