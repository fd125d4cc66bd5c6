//! Private copies of images, for guests that change them.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;

/// Bytes that are copied at a time.
const PIECE: u64 = 64 << 20;

/// Makes a copy of `image` in a file without a name, which vanishes with the process that has it open. If the file
/// system can, the copy shares the image's blocks until they are written (`FICLONE` of `ioctl_ficlone(2)`). Else all
/// but the holes is copied.
///
/// # Errors
/// The system's reason: `StorageFull` where the disk has no room.
pub fn private(image: &Path, folder: &Path) -> io::Result<File> {
    let from = File::open(image)?;
    let to = tempfile::tempfile_in(folder)?;
    if ioctl_ficlone(&to, &from).is_err() {
        copy(&from, &to)?;
    }
    Ok(to)
}

fn copy(from: &File, to: &File) -> io::Result<()> {
    let len = from.metadata()?.len();
    to.set_len(len)?;
    let mut at = 0;
    while let Some(start) = next_data(from, at)? {
        at = seek(from, SeekFrom::Hole(start))?;
        copy_range(from, to, start, at)?;
    }
    Ok(())
}

/// Returns where the next bytes are that aren't in a hole.
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start)),
        // No such bytes follow.
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut read, mut written) = (start, start);
    while read < end {
        let piece = usize::try_from((end - read).min(PIECE)).unwrap_or(usize::MAX);
        let copied = copy_file_range(from, Some(&mut read), to, Some(&mut written), piece)?;
        if copied == 0 {
            let error = "the image ends before its length: something has changed it";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn a_copy_has_the_image_s_bytes_and_holes_and_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let image = File::create(&path).unwrap();
        image.write_all_at(&[7; 5000], 1 << 20).unwrap();
        image.set_len(16 << 20).unwrap();
        let by_hand = tempfile::tempfile_in(folder.path()).unwrap();
        copy(&File::open(&path).unwrap(), &by_hand).unwrap();
        for mut made in [private(&path, folder.path()).unwrap(), by_hand] {
            let mut bytes = Vec::new();
            rustix::fs::seek(&made, SeekFrom::Start(0)).unwrap();
            made.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len(), 16 << 20);
            assert!(bytes[1 << 20..][..5000].iter().all(|byte| *byte == 7));
            assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 5000);
            let kept = made.metadata().unwrap().blocks() * 512;
            assert!(kept < 1 << 20, "{kept} bytes of a sparse image");
            made.write_all_at(&[9], 1 << 20).unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let mut first = [0];
        File::open(&path)
            .unwrap()
            .read_exact_at(&mut first, 1 << 20)
            .unwrap();
        assert_eq!(first, [7]);
    }
}
