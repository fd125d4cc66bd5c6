//! Files of the host that a VM is given: where they are opened, and what they are called.

use std::{
    ffi::OsStr,
    fmt::{self, Debug, Display, Formatter},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The folder with a process's open files, as links that lead to the very files (`proc_pid_fd(5)`).
const OPEN_FILES: &str = "/proc/self/fd";

/// A file, a folder or a socket of the host. It is found by its path, or it was found before and is held open: then no
/// change of names can lead to another one.
#[derive(Clone)]
pub struct HostPath {
    /// Its name in messages.
    name: PathBuf,
    /// What is opened.
    path: PathBuf,
    /// The open file or folder that the path goes through.
    held: Option<Held>,
}

#[derive(Clone)]
struct Held {
    file: Arc<OwnedFd>,
    /// The path is that of a name in this folder.
    is_folder_of_it: bool,
}

impl HostPath {
    /// A file that is held open (`O_PATH` is enough), which messages call `name`. Each user opens it anew.
    #[must_use]
    pub fn of_file(name: impl Into<PathBuf>, file: OwnedFd) -> Self {
        let path = Path::new(OPEN_FILES).join(file.as_raw_fd().to_string());
        Self::held(name.into(), path, file, false)
    }

    /// A folder that is held open, which messages call `name`.
    #[must_use]
    pub fn of_folder(name: impl Into<PathBuf>, folder: OwnedFd) -> Self {
        let mut path = Path::new(OPEN_FILES).join(folder.as_raw_fd().to_string());
        // The path leads to the folder itself even if a link at its end isn't followed.
        path.push(".");
        Self::held(name.into(), path, folder, false)
    }

    /// The file that is called `entry`, or will be, in a folder that is held open; messages call it `name`. `entry` is
    /// one part of a path.
    #[must_use]
    pub fn within(name: impl Into<PathBuf>, folder: OwnedFd, entry: &OsStr) -> Self {
        let mut path = Path::new(OPEN_FILES).join(folder.as_raw_fd().to_string());
        path.push(entry);
        Self::held(name.into(), path, folder, true)
    }

    fn held(name: PathBuf, path: PathBuf, file: OwnedFd, is_folder_of_it: bool) -> Self {
        let held = Held {
            file: Arc::new(file),
            is_folder_of_it,
        };
        Self {
            name,
            path,
            held: Some(held),
        }
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// The path to open it by, valid as long as `self`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that it is in, if that is held open.
    #[must_use]
    pub fn folder(&self) -> Option<BorrowedFd<'_>> {
        let held = self.held.as_ref().filter(|held| held.is_folder_of_it);
        held.map(|held| held.file.as_fd())
    }
}

impl<P: Into<PathBuf>> From<P> for HostPath {
    fn from(path: P) -> Self {
        let path = path.into();
        Self {
            name: path.clone(),
            path,
            held: None,
        }
    }
}

impl Display for HostPath {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.name.display(), f)
    }
}

impl Debug for HostPath {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.name, f)
    }
}

impl PartialEq for HostPath {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.path) == (&other.name, &other.path)
    }
}

impl Eq for HostPath {}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use rustix::fs::{CWD, Mode, OFlags, openat};

    use super::*;

    fn hold(path: &Path) -> OwnedFd {
        openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn a_file_that_is_held_stays_the_same_when_its_name_leads_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        fs::write(&file, "first").unwrap();
        let held = HostPath::of_file("shown", hold(&file));
        fs::rename(&file, folder.path().join("g")).unwrap();
        fs::write(&file, "second").unwrap();
        assert_eq!(fs::read_to_string(held.path()).unwrap(), "first");
        assert_eq!(held.to_string(), "shown");
        let mut opened = fs::File::options().append(true).open(held.path()).unwrap();
        opened.write_all(b" and more").unwrap();
        let moved = fs::read_to_string(folder.path().join("g")).unwrap();
        assert_eq!(moved, "first and more");
        assert!(held.folder().is_none());
    }

    #[test]
    fn a_folder_that_is_held_has_its_entries() {
        let folder = tempfile::tempdir().unwrap();
        let within = HostPath::within("shown", hold(folder.path()), OsStr::new("made"));
        fs::write(within.path(), "made").unwrap();
        assert_eq!(
            fs::read_to_string(folder.path().join("made")).unwrap(),
            "made"
        );
        assert!(within.folder().is_some());
        let held = HostPath::of_folder("shown", hold(folder.path()));
        // The folder itself, not the link.
        assert!(fs::symlink_metadata(held.path()).unwrap().is_dir());
        assert_eq!(fs::read_dir(held.path()).unwrap().count(), 1);
    }
}
