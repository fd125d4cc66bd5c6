//! Paths below a folder.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// How often a path is looked up again when another process renames folders on its way meanwhile.
const TRIES: usize = 64;

/// Why a path below a folder can't be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBeneath {
    /// The path leads out of the folder, or might.
    Outside,
    /// The host's kernel has no system call for this.
    Unsupported,
    /// The system's reason.
    Failed(Errno),
}

/// Opens one of the owner's folders, without reading it.
///
/// # Errors
/// The system's reason.
pub fn folder(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

/// Returns a handle (`O_PATH`) of what `rest` leads to below a folder. Neither `..` nor a link leads out of the folder,
/// nor does a link of `/proc` to an open file (openat2(2), `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS`; Linux 5.6).
///
/// # Errors
/// See [`NotBeneath`].
pub fn find(folder: &OwnedFd, rest: &Path, flags: OFlags) -> Result<OwnedFd, NotBeneath> {
    let rest = match rest.as_os_str().is_empty() {
        true => Path::new("."),
        false => rest,
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let find = || openat2(folder, rest, flags, Mode::empty(), resolve);
    // EAGAIN: something was renamed meanwhile, and it isn't known whether `..` leads out.
    let mut found = find();
    for _ in 1..TRIES {
        if found.as_ref().err() != Some(&Errno::AGAIN) {
            break;
        }
        found = find();
    }
    found.map_err(|error| match error {
        Errno::XDEV | Errno::LOOP | Errno::AGAIN => NotBeneath::Outside,
        Errno::NOSYS => NotBeneath::Unsupported,
        other => NotBeneath::Failed(other),
    })
}
