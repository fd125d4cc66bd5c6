//! Unpacked kernels, kept in a folder by what they were unpacked from.
//!
//! A file is named by the SHA-256 of the packed bytes, so that no user's kernel can stand for another's. The folder may
//! be deleted at any time, and is used by several processes at once: a file is complete before it has its name.

use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::process::geteuid;
use sha2::{Digest, Sha256};

use super::payload::MAX_IMAGE_SIZE;
use crate::file;

/// Fewest packed bytes of a kernel that is kept: less is unpacked at once.
const LEAST: usize = 1 << 20;
/// Most bytes of all files. Those that were not used for longest go first.
const MOST: u64 = 1 << 30;
/// Permission bits that a folder of one user's must not have: others could change files in it.
const OTHERS_WRITE: u32 = 0o022;

/// A folder of unpacked kernels.
pub(super) struct KernelCache<'a> {
    folder: &'a Path,
    most: u64,
}

impl<'a> KernelCache<'a> {
    pub(super) fn new(folder: &'a Path) -> Self {
        Self { folder, most: MOST }
    }

    /// The kernel of `packed` that has `len` bytes, or what `unpack` makes of it, which is kept. A folder that can't be
    /// used is ignored.
    pub(super) fn unpacked<E>(
        &self,
        packed: &[u8],
        len: usize,
        unpack: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        if packed.len() < LEAST {
            return unpack();
        }
        let path = self.folder.join(name(packed));
        if let Some(kept) = self.find(&path, len) {
            return Ok(kept);
        }
        let image = unpack()?;
        if let Err(error) = self.keep(&path, &image) {
            let folder = self.folder.display();
            tracing::warn!("an unpacked kernel can't be kept in {folder}: {error}");
        }
        Ok(image)
    }

    fn find(&self, path: &Path, len: usize) -> Option<Vec<u8>> {
        self.check().ok()?;
        let kept = file::read(&path.into(), MAX_IMAGE_SIZE as u64).ok()?;
        if kept.len() != len {
            return None;
        }
        // The time of change tells which files were used last.
        let file = OpenOptions::new().write(true).open(path);
        let _it_goes_sooner = file.and_then(|file| file.set_modified(SystemTime::now()));
        Some(kept)
    }

    fn keep(&self, path: &Path, image: &[u8]) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(self.folder)?;
        self.check()?;
        let unfinished = path.with_extension(std::process::id().to_string());
        let written = write(&unfinished, image).and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            let _there_may_be_none = fs::remove_file(&unfinished);
        }
        written?;
        self.make_room()
    }

    /// Fails for a folder in which another user could put a file.
    fn check(&self) -> io::Result<()> {
        let found = fs::metadata(self.folder)?;
        let is_ours = found.uid() == geteuid().as_raw() && found.mode() & OTHERS_WRITE == 0;
        match is_ours {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "another user owns it or can write to it",
            )),
        }
    }

    fn make_room(&self) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(self.folder)?.flatten() {
            // Another process may have removed it.
            if let Ok(found) = entry.metadata() {
                files.push((found.modified()?, found.len(), entry.path()));
            }
        }
        files.sort();
        let mut all: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in files {
            if all <= self.most {
                break;
            }
            let _another_may_have_removed_it = fs::remove_file(path);
            all -= len;
        }
        Ok(())
    }
}

fn name(packed: &[u8]) -> String {
    let mut name = String::new();
    for byte in Sha256::digest(packed) {
        // Writing to a string never fails.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Writes a file that is whole also after a loss of power.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs::Permissions, os::unix::fs::PermissionsExt, time::Duration};

    use tempfile::TempDir;

    use super::*;

    const UNPACKED: &[u8] = b"unpacked";

    /// Asks a cache for a kernel. Returns what it gives, and whether that was unpacked.
    fn ask(cache: &KernelCache<'_>, packed: &[u8]) -> (Vec<u8>, bool) {
        let was_unpacked = Cell::new(false);
        let image = cache.unpacked::<()>(packed, UNPACKED.len(), || {
            was_unpacked.set(true);
            Ok(UNPACKED.to_vec())
        });
        (image.unwrap(), was_unpacked.get())
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    #[test]
    fn a_kernel_is_unpacked_once_and_found_by_its_bytes() {
        let folder = TempDir::new().unwrap();
        let folder = folder.path().join("made/by/the/cache");
        let cache = KernelCache::new(&folder);
        let (a, b) = (vec![1; LEAST], vec![2; LEAST]);
        assert_eq!(ask(&cache, &a), (UNPACKED.to_vec(), true));
        assert_eq!(ask(&cache, &a), (UNPACKED.to_vec(), false));
        assert_eq!(ask(&cache, &b), (UNPACKED.to_vec(), true));
        assert_eq!(files(&folder).len(), 2);
        for file in files(&folder) {
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn small_kernels_are_not_kept_and_those_of_another_length_are_not_taken() {
        let parent = TempDir::new().unwrap();
        let folder = parent.path().join("kept");
        let cache = KernelCache::new(&folder);
        assert!(ask(&cache, &[1; 100]).1);
        assert!(!folder.exists());
        let packed = vec![1; LEAST];
        ask(&cache, &packed);
        fs::write(&files(&folder)[0], b"cut").unwrap();
        assert_eq!(ask(&cache, &packed), (UNPACKED.to_vec(), true));
        assert_eq!(ask(&cache, &packed), (UNPACKED.to_vec(), false));
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_passed_by() {
        let parent = TempDir::new().unwrap();
        let folder = parent.path().join("kept");
        let cache = KernelCache::new(&folder);
        let packed = vec![1; LEAST];
        ask(&cache, &packed);
        assert!(!ask(&cache, &packed).1);
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(ask(&cache, &packed), (UNPACKED.to_vec(), true));
        // A path that can't be a folder isn't used either.
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(ask(&KernelCache::new(&file), &packed).1);
    }

    #[test]
    fn the_kernel_that_was_not_used_for_longest_goes_first() {
        let parent = TempDir::new().unwrap();
        let folder = parent.path().join("kept");
        let cache = KernelCache {
            folder: &folder,
            most: 2 * UNPACKED.len() as u64,
        };
        let packed = [1, 2, 3].map(|byte| vec![byte; LEAST]);
        let age = |packed: &[u8], seconds| {
            let path = folder.join(name(packed));
            let file = OpenOptions::new().write(true).open(path).unwrap();
            let then = SystemTime::now() - Duration::from_secs(seconds);
            file.set_modified(then).unwrap();
        };
        ask(&cache, &packed[0]);
        age(&packed[0], 200);
        ask(&cache, &packed[1]);
        age(&packed[1], 100);
        // A use makes it young.
        assert!(!ask(&cache, &packed[0]).1);
        ask(&cache, &packed[2]);
        assert!(!ask(&cache, &packed[0]).1);
        assert!(!ask(&cache, &packed[2]).1);
        assert!(ask(&cache, &packed[1]).1);
    }
}
