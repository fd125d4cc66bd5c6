//! An upload under way.

use std::fmt::{self, Debug, Formatter};
use std::fs::Permissions;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;
use tokio::sync::OwnedSemaphorePermit;

use super::room::Room;
use super::store::{Content, ImageStore, KeptImage};
use super::{Digest, ImageError};
use crate::access::Account;
use crate::limits;

/// Permissions of a content's file: nobody changes it.
const MODE: u32 = 0o400;
/// What zeros are taken from for their digest.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// What an upload begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Empty for none.
    pub name: String,
    pub size: u64,
    pub digest: Digest,
}

/// What becomes of an upload that begins.
#[derive(Debug)]
pub enum Begun {
    /// The account has this content.
    There(KeptImage),
    /// Its content is to come.
    Upload(Box<Upload>),
}

/// An image whose content comes part by part. Dropped, it leaves nothing.
pub struct Upload {
    store: Arc<ImageStore>,
    account: Account,
    wanted: Begin,
    file: NamedTempFile,
    sha256: Sha256,
    len: u64,
    room: Room,
    _place: OwnedSemaphorePermit,
}

impl Debug for Upload {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

impl Upload {
    pub(super) fn new(room: Room, place: OwnedSemaphorePermit, wanted: Begin) -> io::Result<Self> {
        let store = Arc::clone(&room.store);
        Ok(Self {
            account: room.account.clone(),
            file: NamedTempFile::new_in(store.unfinished())?,
            store,
            wanted,
            sha256: Sha256::new(),
            len: 0,
            room,
            _place: place,
        })
    }

    /// The next bytes. Blocks.
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

    /// The next bytes, all of which are 0. Blocks.
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

    /// Keeps the image, for good. Blocks.
    ///
    /// # Errors
    /// The content isn't what was announced, or can't be written.
    pub fn finish(self) -> Result<KeptImage, ImageError> {
        let Self {
            store,
            account,
            wanted,
            file,
            sha256,
            len,
            room,
            _place,
        } = self;
        if len != wanted.size {
            return Err(ImageError::Short {
                found: len,
                announced: wanted.size,
            });
        }
        let found = Digest(sha256.finalize().into());
        if found != wanted.digest {
            return Err(ImageError::Content {
                found,
                announced: wanted.digest,
            });
        }
        let written = file.as_file();
        written.set_permissions(Permissions::from_mode(MODE))?;
        written.sync_all()?;
        let kept = store.keep(&account, &wanted, Content(file));
        // Not before: it is the image that takes the room from now on.
        drop(room);
        kept
    }
}
