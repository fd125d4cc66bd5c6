//! The folder that a guest is given.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// Bytes of a tag, by which a guest mounts a share (5.11.4).
pub(super) const TAG_LEN: usize = 36;

/// A folder of the host's for a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The name by which the guest mounts it: 1 to 36 bytes.
    pub tag: String,
    /// The folder.
    pub path: PathBuf,
    /// What becomes of the guest's changes.
    pub mode: ShareMode,
}

/// What becomes of a guest's changes to a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareMode {
    /// It can make none.
    ReadOnly,
    /// They are made in the folder.
    ReadWrite,
    /// They are made in another folder, which is over the first: the guest sees both as one.
    CopyOnWrite {
        /// The folder for changes. None: one in the system's folder for temporary files, which is removed
        /// when the guest has ended.
        changes: Option<PathBuf>,
    },
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
    /// The folder for a guest's changes can't be made or used.
    #[error(
        "the folder {path} for a guest's changes can't be used: {cause}; it must be a folder of a \
         file system with extended attributes, and not within the one that is shared"
    )]
    Changes {
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
            path: self.path.clone(),
            cause,
        };
        // Reading it tells as well whether this process may.
        fs::read_dir(&self.path).map(drop).map_err(failed)
    }
}

/// A folder for a guest's changes.
#[derive(Debug)]
pub(super) struct Changes {
    path: PathBuf,
    /// It is removed when nobody needs it any more.
    is_temporary: bool,
}

impl Changes {
    /// The folder `given`, or a new temporary one, for changes to `share`.
    pub(super) fn new(given: Option<&Path>, share: &Path) -> Result<Self, ShareError> {
        match given {
            Some(path) => {
                let changes = Self {
                    path: path.to_owned(),
                    is_temporary: false,
                };
                changes.check(share)?;
                Ok(changes)
            }
            None => Self::temporary(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn check(&self, share: &Path) -> Result<(), ShareError> {
        let failed = |cause| ShareError::Changes {
            path: self.path.clone(),
            cause,
        };
        let own = self.path.canonicalize().map_err(failed)?;
        let share = share.canonicalize().map_err(failed)?;
        if own.starts_with(&share) {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        fs::read_dir(own).map(drop).map_err(failed)
    }

    fn temporary() -> Result<Self, ShareError> {
        let base = std::env::temp_dir();
        let path = base.join(format!(
            "vmprobe-changes-{}-{:016x}",
            std::process::id(),
            random()
        ));
        let made = fs::create_dir(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o700)));
        made.map_err(|cause| ShareError::Changes {
            path: path.clone(),
            cause,
        })?;
        Ok(Self {
            path,
            is_temporary: true,
        })
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        if !self.is_temporary {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            let path = self.path.display();
            tracing::warn!("the folder {path} of a guest's changes stays: {error}");
        }
    }
}

/// A number that nobody else has.
fn random() -> u64 {
    // Without random bytes the folder's name is taken sooner or later, and making it fails.
    getrandom::u64().unwrap_or_default()
}
