//! Folders of the upper of two layers in which nothing of the lower one is to be seen: "opaque" ones.
//!
//! An extended attribute says so, in the names of Linux' overlayfs and of fuse-overlayfs.

use std::{
    ffi::{CStr, CString},
    io,
};

use fuse_backend_rs::api::filesystem::{Context, FileSystem, GetxattrReply};
use parking_lot::Mutex;

/// Attributes that make a folder opaque, the first one for everybody, the second one for root, where the file
/// system takes no attributes of users (tmpfs before 6.6; Documentation/filesystems/overlayfs.rst).
const OPAQUE: [&CStr; 2] = [c"user.fuseoverlayfs.opaque", c"trusted.overlay.opaque"];
/// Their value, and most bytes that one is read with.
const YES: &[u8] = b"y";
const VALUE_ROOM: u32 = 16;

/// Where a whiteout has just been taken away: a mark of the upper layer that something of the lower one is gone.
///
/// A folder that is made there instead must be opaque. fuse-backend-rs makes it so only if the whiteout was there
/// when the share was opened.
#[derive(Default)]
pub(super) struct Whiteouts(Mutex<Option<(u64, CString)>>);

impl Whiteouts {
    /// One was taken away: `name` in the folder `parent`.
    pub(super) fn taken_away(&self, parent: u64, name: &CStr) {
        *self.0.lock() = Some((parent, name.to_owned()));
    }

    /// Returns true, once, if the last one was `name` in the folder `parent`.
    pub(super) fn was_at(&self, parent: u64, name: &CStr) -> bool {
        let last = self.0.lock().take();
        last.is_some_and(|(folder, gone)| folder == parent && *gone == *name)
    }
}

/// Makes a folder opaque.
pub(super) fn set_opaque<F: FileSystem>(
    files: &F,
    context: &Context,
    inode: u64,
) -> io::Result<()> {
    let [first, second] = OPAQUE;
    let set = |name| files.setxattr(context, inode.into(), name, YES, 0);
    match set(first) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => set(second),
        done => done,
    }
}

/// Returns true if a folder is opaque.
pub(super) fn is_opaque<F: FileSystem>(files: &F, context: &Context, inode: u64) -> bool {
    // A file system without attributes has none of these.
    OPAQUE.iter().any(|name| {
        let value = files.getxattr(context, inode.into(), name, VALUE_ROOM);
        matches!(value, Ok(GetxattrReply::Value(value)) if value == YES)
    })
}
