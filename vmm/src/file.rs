//! Reading the files of a guest, whatever kind of file a path leads to.

use std::{
    fs::OpenOptions,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
};

use thiserror::Error;

use crate::host_path::HostPath;

/// Why a file isn't read.
#[derive(Debug, Error)]
pub enum FileError {
    /// A folder, a device, a FIFO, a socket.
    #[error("it isn't a regular file")]
    NotRegular,
    /// It has more bytes than may be read.
    #[error("it has {size} bytes, and {limit} are the limit")]
    TooLarge {
        /// Its length in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Its end comes before its length.
    #[error("it ended after {found} of its {size} bytes: something changed it meanwhile")]
    Shortened {
        /// The bytes that were there.
        found: usize,
        /// Its length in bytes when it was opened.
        size: u64,
    },
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads a whole regular file of at most `limit` bytes. Never waits for a writer.
///
/// What is read is as long as the file says it is when it is opened. A file whose content the host's
/// kernel makes up while it is read (`/proc/kmsg`, where a read may wait for ever) says that it has 0
/// bytes, so nothing is read of it.
///
/// # Errors
/// See [`FileError`].
pub fn read(file: &HostPath, limit: u64) -> Result<Vec<u8>, FileError> {
    // Without O_NONBLOCK a FIFO waits in open() for a writer, and a terminal for its carrier; with
    // O_NOCTTY a terminal doesn't become this process' own.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(file.path())?;
    // Asked of the file that is open, not of what the path may lead to by now.
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(FileError::NotRegular);
    }
    let size = metadata.len();
    if size > limit {
        return Err(FileError::TooLarge { size, limit });
    }
    let mut bytes = Vec::new();
    let room = usize::try_from(size).unwrap_or(usize::MAX);
    bytes
        .try_reserve_exact(room)
        .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    file.take(size).read_to_end(&mut bytes)?;
    if bytes.len() != room {
        let found = bytes.len();
        return Err(FileError::Shortened { found, size });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vmm-file-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_file_is_read_up_to_the_limit_and_not_beyond() {
        let folder = folder("limit");
        let path = folder.join("f");
        std::fs::write(&path, [7; 100]).unwrap();
        assert_eq!(read(&path.as_path().into(), 100).unwrap(), [7; 100]);
        assert!(matches!(
            read(&path.as_path().into(), 99),
            Err(FileError::TooLarge {
                size: 100,
                limit: 99
            })
        ));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_is_not_regular_is_refused_without_waiting() {
        let folder = folder("kinds");
        let fifo = folder.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        for path in [&*fifo, &*folder, Path::new("/dev/zero")] {
            let error = read(&path.into(), 1 << 20).unwrap_err();
            assert!(matches!(error, FileError::NotRegular), "{path:?}: {error}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_the_kernel_makes_up_gives_nothing() {
        // Regular by their kind, and of length 0.
        for path in ["/proc/self/pagemap", "/proc/kmsg"] {
            match read(&path.into(), 1 << 20) {
                Ok(bytes) => assert!(bytes.is_empty(), "{path}"),
                Err(FileError::Io(_)) => {}
                Err(error) => panic!("{path}: {error}"),
            }
        }
    }
}
