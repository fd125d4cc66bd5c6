//! Mappings.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Maps memory: at an address of the system's choice, or over a mapping of the caller's that nothing
/// refers to yet.
pub(super) fn map(
    at: *mut u8,
    len: usize,
    access: libc::c_int,
    flags: libc::c_int,
    file: Option<&OwnedFd>,
) -> io::Result<*mut u8> {
    let (kind, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping, at an address of the system's choice or over one of ours that nothing
    // refers to yet.
    let found = unsafe { libc::mmap(at.cast(), len, access, kind | flags, fd, 0) };
    if found == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(found.cast())
}
