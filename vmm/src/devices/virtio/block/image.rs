//! The file that a disk's bytes are in.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    },
    path::PathBuf,
};

use imago::{
    DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, file::File as ImageFile, qcow2::Qcow2,
    raw::Raw,
};
use thiserror::Error;

use super::SECTOR;
use crate::{devices::virtio::rate::RateLimit, host_path::HostPath};

/// What a qcow2 image begins with (QEMU's `docs/interop/qcow2.txt`).
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// A disk for a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// An image file, or a block device.
    pub path: HostPath,
    /// How the disk's bytes are in it. None: as they are. A file that looks like qcow2 is refused then,
    /// as a guest may have written that: taken for qcow2 it could name other files of the host.
    pub format: Option<DiskFormat>,
    /// The guest can't write to it.
    pub read_only: bool,
    /// Most that the guest reads and writes of it in a second, together.
    pub limit: RateLimit,
}

/// How a disk's bytes are in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFormat {
    /// As they are.
    Raw,
    /// QEMU's copy-on-write format, version 2 or 3, that needs no other file.
    Qcow2,
}

/// Why a file can't be a guest's disk.
#[derive(Debug, Error)]
pub enum DiskError {
    /// It can't be opened.
    #[error("the disk {path} can't be opened: {cause}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// It has no bytes to be a disk of.
    #[error("the disk {path} is neither a file nor a block device")]
    NoFile {
        /// What isn't one.
        path: PathBuf,
    },
    /// Another process or another guest writes to it.
    #[error(
        "the disk {path} is in use: another guest has it, and one of the two can write; give each \
         guest its own copy, or both a read-only one"
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Not a whole sector.
    #[error("the disk {path} has {len} bytes, but a disk has at least one sector of {SECTOR}")]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Bytes of the disk in it.
        len: u64,
    },
    /// No format was named, and the file looks like an image of another format than raw.
    #[error(
        "the disk {path} looks like a qcow2 image: say whether it is one (`{path},qcow2`) or a raw \
         disk that happens to begin like one (`{path},raw`)"
    )]
    Ambiguous {
        /// The file.
        path: PathBuf,
    },
    /// The image refers to another file.
    #[error(
        "the qcow2 image {path} needs another file (a backing file or a data file), which isn't \
         opened for it: make it whole with `qemu-img convert -O qcow2 {path} NEW`"
    )]
    NotWhole {
        /// The file.
        path: PathBuf,
    },
    /// It isn't of the format named.
    #[error("{path} is no image of the format {format}: {cause}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The format.
        format: &'static str,
        /// What is wrong with it.
        cause: io::Error,
    },
}

/// An opened disk's bytes.
pub(super) type Image = FormatAccess<ImageFile>;

/// An opened disk, locked as long as it is open.
pub(super) struct OpenDisk {
    pub(super) image: Image,
    /// The file without its lock, if the disk's bytes are in it as they are.
    pub(super) raw: Option<File>,
}

impl Disk {
    /// Opens the disk, and locks it against guests that write to it too.
    pub(super) fn open(&self) -> Result<OpenDisk, DiskError> {
        let path = || self.path.name().to_owned();
        let file = self.open_file()?;
        let format = match self.format {
            Some(format) => format,
            None if begins_like_qcow2(&file) => {
                return Err(DiskError::Ambiguous { path: path() });
            }
            None => DiskFormat::Raw,
        };
        let raw = match format {
            DiskFormat::Raw => self.open_again(&file).ok(),
            DiskFormat::Qcow2 => None,
        };
        let opened = open_image(file, format, !self.read_only);
        let image = opened.map_err(|cause| match cause.kind() {
            io::ErrorKind::PermissionDenied => DiskError::NotWhole { path: path() },
            _ => DiskError::Format {
                path: path(),
                format: format.name(),
                cause,
            },
        })?;
        let len = image.size();
        if len < SECTOR {
            return Err(DiskError::TooSmall { path: path(), len });
        }
        Ok(OpenDisk { image, raw })
    }

    /// Opens a file that is open once more, without its lock: one that the kernel closes later than this process does
    /// must not keep the disk locked.
    fn open_again(&self, file: &File) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(!self.read_only)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }

    fn open_file(&self) -> Result<File, DiskError> {
        let path = || self.path.name().to_owned();
        let failed = |cause| DiskError::Open {
            path: path(),
            cause,
        };
        // Without O_NONBLOCK a FIFO waits in open() for a process at its other end.
        let opened = OpenOptions::new()
            .read(true)
            .write(!self.read_only)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(self.path.path());
        let file = opened.map_err(|cause| match cause.kind() {
            io::ErrorKind::IsADirectory => DiskError::NoFile { path: path() },
            _ => failed(cause),
        })?;
        // Asked of the file that is open, not of what the path may lead to by now.
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DiskError::NoFile { path: path() });
        }
        let locked = if self.read_only {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        match locked {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(DiskError::Busy { path: path() }),
            Err(TryLockError::Error(cause)) => Err(failed(cause)),
        }
    }
}

impl DiskFormat {
    fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

fn begins_like_qcow2(file: &File) -> bool {
    let mut magic = [0; QCOW2_MAGIC.len()];
    file.read_exact_at(&mut magic, 0).is_ok() && magic == QCOW2_MAGIC
}

fn open_image(file: File, format: DiskFormat, writable: bool) -> io::Result<Image> {
    let file = ImageFile::try_from(file)?;
    let gate = DenyImplicitOpenGate::default();
    Ok(match format {
        DiskFormat::Raw => {
            let raw = Raw::builder(file).write(writable).open(gate)?;
            FormatAccess::new(raw)
        }
        DiskFormat::Qcow2 => {
            let qcow2 = Qcow2::<ImageFile>::builder(file).write(writable);
            FormatAccess::new(qcow2.open(gate)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use imago::FormatCreateBuilder;
    use tempfile::TempDir;

    use super::*;

    fn disk(path: &Path, format: Option<DiskFormat>) -> Disk {
        Disk {
            path: path.into(),
            format,
            read_only: false,
            limit: RateLimit::default(),
        }
    }

    fn folder() -> TempDir {
        tempfile::tempdir().unwrap()
    }

    fn raw(folder: &TempDir, bytes: &[u8]) -> PathBuf {
        let path = folder.path().join("disk");
        fs::write(&path, bytes).unwrap();
        path
    }

    fn qcow2(folder: &TempDir, backing: Option<&str>) -> PathBuf {
        let path = folder.path().join("disk.qcow2");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        let file = ImageFile::try_from(file).unwrap();
        let mut builder = Qcow2::<ImageFile>::create_builder(file).size(1 << 20);
        if let Some(backing) = backing {
            builder = builder.backing(backing.to_owned(), "raw".to_owned());
        }
        builder.create().unwrap();
        path
    }

    #[test]
    fn a_raw_image_and_a_qcow2_image_have_the_bytes_written_to_them() {
        let folder = folder();
        let plain = raw(&folder, &vec![0; 1 << 20]);
        for disk in [
            disk(&plain, None),
            disk(&qcow2(&folder, None), Some(DiskFormat::Qcow2)),
        ] {
            let image = disk.open().unwrap().image;
            assert_eq!(image.size(), 1 << 20);
            image.write(&[7u8; 1024][..], 512).unwrap();
            image.flush().unwrap();
            drop(image);
            let mut read = vec![1; 2048];
            disk.open().unwrap().image.read(&mut read[..], 0).unwrap();
            let expected = [[0; 512], [7; 512], [7; 512], [0; 512]].concat();
            assert_eq!(read, expected, "{disk:?}");
        }
    }

    #[test]
    fn one_guest_may_write_or_several_read() {
        let folder = folder();
        let path = raw(&folder, &[0; 512]);
        let writer = disk(&path, None);
        let reader = Disk {
            read_only: true,
            limit: RateLimit::default(),
            ..writer.clone()
        };
        let first = reader.open().unwrap();
        let second = reader.open().unwrap();
        assert!(matches!(writer.open(), Err(DiskError::Busy { .. })));
        drop((first, second));
        let _alone = writer.open().unwrap();
        for other in [&writer, &reader] {
            assert!(matches!(other.open(), Err(DiskError::Busy { .. })));
        }
    }

    #[test]
    fn what_looks_like_qcow2_must_be_said_to_be_one_or_not() {
        let folder = folder();
        let path = qcow2(&folder, None);
        assert!(matches!(
            disk(&path, None).open(),
            Err(DiskError::Ambiguous { .. })
        ));
        let file_len = fs::metadata(&path).unwrap().len();
        let as_raw = disk(&path, Some(DiskFormat::Raw)).open().unwrap().image;
        assert_eq!(as_raw.size(), file_len);
    }

    #[test]
    fn an_image_does_not_have_other_files_opened() {
        let folder = folder();
        let backing = raw(&folder, &[0; 512]);
        let path = qcow2(&folder, backing.to_str());
        assert!(matches!(
            disk(&path, Some(DiskFormat::Qcow2)).open(),
            Err(DiskError::NotWhole { .. })
        ));
    }

    #[test]
    fn what_is_no_disk_is_told_by_name() {
        let folder = folder();
        let open = |path: &Path, format| match disk(path, format).open() {
            Ok(_) => panic!("opened {path:?}"),
            Err(error) => error,
        };
        let missing = folder.path().join("missing");
        assert!(matches!(open(&missing, None), DiskError::Open { .. }));
        assert!(matches!(
            open(folder.path(), None),
            DiskError::NoFile { .. }
        ));
        let short = raw(&folder, &[0; 511]);
        let error = open(&short, None);
        assert!(matches!(error, DiskError::TooSmall { len: 511, .. }));
        assert!(matches!(
            open(&short, Some(DiskFormat::Qcow2)),
            DiskError::Format { .. }
        ));
    }
}
