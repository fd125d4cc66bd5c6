//! The file that lists the images and their owners.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Digest, OpenError};
use crate::access::Account;

/// The file's name, in the folder of the images.
const FILE: &str = "images.json";

/// The images by account and content.
pub(super) type Images = BTreeMap<(Account, Digest), Entry>;

/// The properties of an image, besides its owner and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) size: u64,
    pub(super) names: BTreeSet<String>,
    /// Seconds since 1970-01-01 UTC.
    pub(super) uploaded_at: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Line {
    account: Account,
    sha256: Digest,
    size: u64,
    names: BTreeSet<String>,
    uploaded_at: u64,
}

/// Reads the list. Without a file, it is empty.
pub(super) fn read(folder: &Path) -> Result<Images, OpenError> {
    let file = folder.join(FILE);
    let text = match std::fs::read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Images::new()),
        Err(cause) => {
            let folder = folder.to_owned();
            return Err(OpenError::Io { folder, cause });
        }
    };
    let lines: Vec<Line> =
        serde_json::from_slice(&text).map_err(|cause| OpenError::Index { file, cause })?;
    let images = lines.into_iter().map(|line| {
        let entry = Entry {
            size: line.size,
            names: line.names,
            uploaded_at: line.uploaded_at,
        };
        ((line.account, line.sha256), entry)
    });
    Ok(images.collect())
}

/// Writes the list anew, as a whole or not at all. `unfinished` is a folder of the same file
/// system.
pub(super) fn write(folder: &Path, unfinished: &Path, images: &Images) -> io::Result<()> {
    let lines: Vec<Line> = images
        .iter()
        .map(|((account, sha256), entry)| Line {
            account: account.clone(),
            sha256: *sha256,
            size: entry.size,
            names: entry.names.clone(),
            uploaded_at: entry.uploaded_at,
        })
        .collect();
    let mut written = tempfile::NamedTempFile::new_in(unfinished)?;
    serde_json::to_writer_pretty(&mut written, &lines)?;
    written.write_all(b"\n")?;
    written.as_file().sync_all()?;
    let path: PathBuf = folder.join(FILE);
    written.persist(path).map_err(|error| error.error)?;
    sync_folder(folder)
}

/// Makes a folder's names outlast a crash of the host.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
