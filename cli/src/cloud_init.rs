//! A disk by which cloud-init sets up a guest's system: a seed of its data source `NoCloud`
//! (cloud-init's documentation, reference/datasources/nocloud).
//!
//! It is a FAT file system with the label `CIDATA` and the files in its root folder.

use std::fs;
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions, format_volume};
use tempfile::NamedTempFile;
use vmprobe_client::v1::{CreateVmRequest, Disk, DiskFormat};

use crate::cli::CloudInitArgs;
use crate::paths::{self, PathError};

/// The label by which cloud-init finds the disk, padded as FAT has it. cloud-init also takes small letters, which FAT
/// doesn't have.
const LABEL: [u8; 11] = *b"CIDATA     ";
/// The files. cloud-init wants the first two of them.
const USER_DATA: &str = "user-data";
const META_DATA: &str = "meta-data";
const NETWORK_CONFIG: &str = "network-config";
const VENDOR_DATA: &str = "vendor-data";
/// Bytes of a disk beside those of its files: the file system's own, and each file's to the end of its last cluster.
const ROOM: usize = 1 << 20;
const SECTOR: usize = 512;

/// Why there is no such disk.
#[derive(Debug, thiserror::Error)]
pub enum CloudInitError {
    /// A file can't be read.
    #[error("can't read {}, which cloud-init is to have: {cause}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The disk can't be written.
    #[error("can't write a disk for cloud-init: {0}")]
    Write(io::Error),
    /// The disk's path isn't one for the protocol.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A disk for cloud-init. It is deleted when this is dropped.
pub struct Seed {
    file: NamedTempFile,
}

/// A file's name on the disk, and its bytes.
type Entry = (&'static str, Vec<u8>);

impl Seed {
    /// Makes the disk that is asked for, if one is.
    ///
    /// # Errors
    /// See [`CloudInitError`].
    pub fn make(asked: &CloudInitArgs) -> Result<Option<Self>, CloudInitError> {
        let Some(files) = files(asked)? else {
            return Ok(None);
        };
        let make = || {
            let mut file = NamedTempFile::with_prefix("vmprobe-cloud-init-")?;
            file.write_all(&image(&files)?)?;
            Ok(Self { file })
        };
        make().map(Some).map_err(CloudInitError::Write)
    }

    /// Gives a guest the disk, behind its others.
    ///
    /// # Errors
    /// Its path isn't one for the protocol.
    pub fn add_to(&self, request: &mut CreateVmRequest) -> Result<(), CloudInitError> {
        let disk = Disk {
            path: paths::text(self.file.path())?,
            format: DiskFormat::Raw.into(),
            read_only: true,
            ..Disk::default()
        };
        request.devices.get_or_insert_default().disks.push(disk);
        Ok(())
    }
}

/// Reads the files that are asked for: those of a folder, or those that are named.
fn files(asked: &CloudInitArgs) -> Result<Option<Vec<Entry>>, CloudInitError> {
    let mut files = Vec::new();
    if let Some(folder) = &asked.cloud_init {
        files.push((USER_DATA, read(&folder.join(USER_DATA))?));
        for name in [META_DATA, NETWORK_CONFIG, VENDOR_DATA] {
            let path = folder.join(name);
            if path.exists() {
                files.push((name, read(&path)?));
            }
        }
    } else if let Some(user_data) = &asked.user_data {
        files.push((USER_DATA, read(user_data)?));
        for (name, path) in [
            (META_DATA, &asked.meta_data),
            (NETWORK_CONFIG, &asked.network_config),
        ] {
            if let Some(path) = path {
                files.push((name, read(path)?));
            }
        }
    } else {
        return Ok(None);
    }
    if !files.iter().any(|(name, _)| *name == META_DATA) {
        files.push((META_DATA, default_meta_data(&files).into_bytes()));
    }
    Ok(Some(files))
}

fn read(file: &Path) -> Result<Vec<u8>, CloudInitError> {
    fs::read(file).map_err(|cause| CloudInitError::Read {
        file: file.to_owned(),
        cause,
    })
}

/// Makes meta-data with the name of an instance that is set up by these files: cloud-init does most of its work once
/// for each instance.
fn default_meta_data(files: &[Entry]) -> String {
    // FNV-1a, 64 bits. The length keeps a file's end apart from the next one's beginning.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (name, bytes) in files {
        let len = bytes.len().to_le_bytes();
        for byte in name.bytes().chain(len).chain(bytes.iter().copied()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("instance-id: vmprobe-{hash:016x}\n")
}

/// Makes the disk's bytes.
fn image(files: &[Entry]) -> io::Result<Vec<u8>> {
    let content: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let mut image = vec![0; (content + content / 64 + ROOM).next_multiple_of(SECTOR)];
    let options = FormatVolumeOptions::new().volume_label(LABEL);
    format_volume(Cursor::new(&mut image), options)?;
    let system = FileSystem::new(Cursor::new(&mut image), FsOptions::new())?;
    for (name, bytes) in files {
        system.root_dir().create_file(name)?.write_all(bytes)?;
    }
    system.unmount()?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Returns what is on a disk.
    fn on_disk(image: Vec<u8>) -> (String, Vec<(String, Vec<u8>)>) {
        let system = FileSystem::new(Cursor::new(image), FsOptions::new()).unwrap();
        let label = system.read_volume_label_from_root_dir().unwrap();
        let entries = system.root_dir().iter().map(|entry| {
            let (entry, mut bytes) = (entry.unwrap(), Vec::new());
            entry.to_file().read_to_end(&mut bytes).unwrap();
            (entry.file_name(), bytes)
        });
        (label.unwrap(), entries.collect())
    }

    #[test]
    fn files_of_any_size_are_on_a_disk_that_cloud_init_knows() {
        for len in [0, 1, 511, 512, 513, 65_536, 3_000_001, 40_000_000] {
            let bytes: Vec<u8> = (0..len as u32).map(|n| (n ^ n >> 8) as u8).collect();
            let files = [(USER_DATA, bytes.clone()), (META_DATA, b"x: y\n".to_vec())];
            let (label, found) = on_disk(image(&files).unwrap());
            assert_eq!(label, "CIDATA");
            let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, [USER_DATA, META_DATA]);
            assert!(found[0].1 == bytes, "{len} bytes");
        }
    }

    #[test]
    fn a_folder_s_files_are_those_that_cloud_init_knows() {
        let folder = tempfile::tempdir().unwrap();
        for name in [USER_DATA, NETWORK_CONFIG, "notes"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let asked = CloudInitArgs {
            cloud_init: Some(folder.path().to_owned()),
            ..CloudInitArgs::default()
        };
        let found = files(&asked).unwrap().unwrap();
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [USER_DATA, NETWORK_CONFIG, META_DATA]);
        fs::remove_file(folder.path().join(USER_DATA)).unwrap();
        let text = files(&asked).unwrap_err().to_string();
        assert!(text.contains("user-data, which cloud-init"), "{text}");
    }

    #[test]
    fn an_instance_is_another_one_when_its_files_change() {
        let of = |files: &[Entry]| default_meta_data(files);
        let data = |text: &str| text.as_bytes().to_vec();
        let first = of(&[(USER_DATA, data("ab"))]);
        assert_eq!(first, of(&[(USER_DATA, data("ab"))]));
        for other in [
            of(&[(USER_DATA, data("ac"))]),
            of(&[(VENDOR_DATA, data("ab"))]),
            of(&[(USER_DATA, data("ab")), (NETWORK_CONFIG, data(""))]),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn the_disk_is_the_last_and_can_not_be_changed() {
        let mut request = CreateVmRequest::default();
        assert!(Seed::make(&CloudInitArgs::default()).unwrap().is_none());
        let file = NamedTempFile::new().unwrap();
        let asked = CloudInitArgs {
            user_data: Some(file.path().to_owned()),
            ..CloudInitArgs::default()
        };
        let seed = Seed::make(&asked).unwrap().unwrap();
        let devices = request.devices.get_or_insert_default();
        devices.disks.push(Disk::default());
        seed.add_to(&mut request).unwrap();
        let disks = request.devices.unwrap_or_default().disks;
        assert!(disks[1].read_only);
        assert_eq!(Path::new(&disks[1].path), seed.file.path());
    }
}
