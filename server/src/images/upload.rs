//! An upload under way.

use std::fmt::{self, Debug, Formatter};
use std::fs::Permissions;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;
use tokio::sync::OwnedSemaphorePermit;

use super::room::Room;
use super::{Digest, ImageError};
use crate::access::Account;
use crate::limits;

/// Permissions of a content's file, which is never changed.
const MODE: u32 = 0o400;
/// The zeros that are hashed for parts of zeros.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// The announcement of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Empty if the image gets no name.
    pub name: String,
    pub size: u64,
    pub digest: Digest,
}

/// An image whose content is being uploaded. If it is dropped, nothing of it stays.
pub struct Upload {
    account: Account,
    wanted: Begin,
    file: NamedTempFile,
    sha256: Sha256,
    len: u64,
    room: Room,
    _place: OwnedSemaphorePermit,
}

/// An image whose content is complete, and its announcement. If it is dropped, nothing of it stays.
pub(super) struct Complete {
    pub(super) account: Account,
    pub(super) wanted: Begin,
    pub(super) file: NamedTempFile,
    /// Reserves the image's space until the image itself counts.
    pub(super) room: Room,
}

impl Debug for Upload {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

impl Upload {
    /// Makes a file in this folder.
    pub(super) fn new(
        folder: &Path,
        account: &Account,
        wanted: Begin,
        room: Room,
        place: OwnedSemaphorePermit,
    ) -> io::Result<Self> {
        Ok(Self {
            account: account.clone(),
            wanted,
            file: NamedTempFile::new_in(folder)?,
            sha256: Sha256::new(),
            len: 0,
            room,
            _place: place,
        })
    }

    /// Adds the next bytes. Blocks.
    ///
    /// # Errors
    /// The content is longer than announced, or can't be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        if !(1..=limits::IMAGE_CHUNK).contains(&bytes.len()) {
            return Err(ImageError::Part);
        }
        self.grow(bytes.len() as u64)?;
        self.sha256.update(bytes);
        Ok(self.file.write_all(bytes)?)
    }

    /// Adds the next bytes, all of which are 0. Blocks.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_zeros(&mut self, count: u64) -> Result<(), ImageError> {
        if !(1..=limits::IMAGE_ZEROS).contains(&count) {
            return Err(ImageError::Part);
        }
        self.grow(count)?;
        let mut rest = usize::try_from(count).unwrap_or(usize::MAX);
        while rest > 0 {
            let piece = rest.min(ZEROS.len());
            self.sha256.update(&ZEROS[..piece]);
            rest -= piece;
        }
        self.file.as_file().set_len(self.len)?;
        self.file.seek(SeekFrom::Start(self.len))?;
        Ok(())
    }

    fn grow(&mut self, by: u64) -> Result<(), ImageError> {
        let (found, announced) = (self.len.saturating_add(by), self.wanted.size);
        if found > announced {
            return Err(ImageError::Long { found, announced });
        }
        self.len = found;
        Ok(())
    }

    /// Makes sure that the content is on the disk. Blocks.
    ///
    /// # Errors
    /// The content isn't the announced one, or can't be written.
    pub(super) fn complete(self) -> Result<Complete, ImageError> {
        if self.len != self.wanted.size {
            return Err(ImageError::Short {
                found: self.len,
                announced: self.wanted.size,
            });
        }
        let found = Digest(self.sha256.finalize().into());
        if found != self.wanted.digest {
            return Err(ImageError::Content {
                found,
                announced: self.wanted.digest,
            });
        }
        let written = self.file.as_file();
        written.set_permissions(Permissions::from_mode(MODE))?;
        written.sync_all()?;
        Ok(Complete {
            account: self.account,
            wanted: self.wanted,
            file: self.file,
            room: self.room,
        })
    }
}
