//! The folder that a guest is given.

use std::{fs, io, path::PathBuf};

use thiserror::Error;

use crate::host_path::HostPath;

/// Bytes of a tag, by which a guest mounts a share (5.11.4).
pub(super) const TAG_LEN: usize = 36;

/// A folder of the host's for a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The name by which the guest mounts it: 1 to 36 bytes.
    pub tag: String,
    /// The folder.
    pub path: HostPath,
    /// What becomes of the guest's changes.
    pub mode: ShareMode,
}

/// What becomes of a guest's changes to a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareMode {
    /// It can make none.
    ReadOnly,
    /// They are made in the folder.
    ReadWrite,
}

/// Why a folder can't be a guest's.
#[derive(Debug, Error)]
pub enum ShareError {
    /// The tag is empty or too long, or another share has it.
    #[error("{tag:?} can't be a share's tag: {why}")]
    Tag {
        /// The tag.
        tag: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is no such folder, or it can't be read.
    #[error("the folder {path} can't be shared: {cause}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

impl Share {
    /// Checks the tag, and that the folder is one.
    pub(super) fn check(&self) -> Result<(), ShareError> {
        let tag_is = |why| ShareError::Tag {
            tag: self.tag.clone(),
            why,
        };
        if self.tag.is_empty() {
            return Err(tag_is("it is empty"));
        }
        if self.tag.len() > TAG_LEN {
            return Err(tag_is("it has more than 36 bytes"));
        }
        if self.tag.contains('\0') {
            return Err(tag_is("it has a byte that is 0"));
        }
        let failed = |cause| ShareError::Folder {
            path: self.path.name().to_owned(),
            cause,
        };
        // Reading it tells as well whether this process may.
        fs::read_dir(self.path.path()).map(drop).map_err(failed)
    }
}
