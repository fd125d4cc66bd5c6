//! Initial RAM file systems, for the lab machine and for guests.

use std::collections::BTreeSet;

use crate::cpio::{self, Archive};

/// An initramfs being built. Paths are absolute, as the booted kernel sees them; folders above an
/// entry are made automatically.
///
/// ```
/// let image = lab::Initramfs::new()
///     .file("/init", b"a static program", 0o755)
///     .symlink("/bin/sh", "/init")
///     .finish();
/// assert_eq!(&image[..6], b"070701");
/// ```
#[derive(Debug)]
pub struct Initramfs {
    archive: Archive,
    dirs: BTreeSet<String>,
}

impl Default for Initramfs {
    fn default() -> Self {
        Self::new()
    }
}

impl Initramfs {
    /// An initramfs with what every PID 1 needs before it mounts anything: `/dev/console`, which
    /// the kernel opens as its standard input and output, and `/dev/null`.
    #[must_use]
    pub fn new() -> Self {
        // Numbers: the kernel's Documentation/admin-guide/devices.txt.
        Self {
            archive: Archive::default(),
            dirs: BTreeSet::new(),
        }
        .char_device("/dev/console", 5, 1, 0o600)
        .char_device("/dev/null", 1, 3, 0o666)
    }

    /// Adds a regular file with these permissions (`0o755`).
    #[must_use]
    pub fn file(self, path: &str, bytes: &[u8], permissions: u32) -> Self {
        self.add(path, cpio::TYPE_FILE | permissions, (0, 0), bytes)
    }

    /// Adds a folder, `0o755`. One that is there already stays.
    #[must_use]
    pub fn dir(mut self, path: &str) -> Self {
        self.make_dirs(&relative(path));
        self
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.add(path, cpio::TYPE_SYMLINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device node.
    #[must_use]
    pub fn char_device(self, path: &str, major: u32, minor: u32, permissions: u32) -> Self {
        self.add(
            path,
            cpio::TYPE_CHAR_DEVICE | permissions,
            (major, minor),
            &[],
        )
    }

    /// Returns the image. It isn't compressed: a kernel takes it like that, and gzip would be slow
    /// in an emulated machine.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.archive.finish()
    }

    fn add(mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) -> Self {
        let path = relative(path);
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.make_dirs(parent);
        }
        self.archive.entry(&path, mode, device, data);
        self
    }

    fn make_dirs(&mut self, path: &str) {
        let ends = path.match_indices('/').map(|(end, _)| end);
        for end in ends.chain([path.len()]) {
            let dir = &path[..end];
            if !dir.is_empty() && self.dirs.insert(dir.to_owned()) {
                self.archive.entry(dir, cpio::TYPE_DIR | 0o755, (0, 0), &[]);
            }
        }
    }
}

/// Returns the path in cpio's form: without a leading slash, and without doubled ones.
fn relative(path: &str) -> String {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::process::{Command, Stdio};

    use super::*;

    fn names(image: &[u8]) -> Vec<String> {
        let mut names = Vec::new();
        let mut at = 0;
        while at < image.len() {
            let field = |n: usize| {
                let digits = &image[at + 6 + 8 * n..at + 14 + 8 * n];
                usize::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
            };
            let (data, name) = (field(6), field(11));
            let start = at + 110;
            names.push(String::from_utf8(image[start..start + name - 1].to_vec()).unwrap());
            at = (start + name).next_multiple_of(4) + data.next_multiple_of(4);
        }
        names
    }

    #[test]
    fn folders_come_before_what_is_in_them_and_only_once() {
        let image = Initramfs::new()
            .file("/a/b/one", b"1", 0o644)
            .file("//a/b/two", b"22", 0o644)
            .dir("/a/c/")
            .finish();
        let expected = "dev dev/console dev/null a a/b a/b/one a/b/two a/c TRAILER!!!";
        assert_eq!(names(&image).join(" "), expected);
    }

    #[test]
    fn the_same_entries_give_the_same_bytes() {
        let build = || Initramfs::new().file("/x", b"x", 0o600).finish();
        assert_eq!(build(), build());
    }

    /// Runs only on a machine with GNU cpio, which none of our builds needs.
    #[test]
    fn gnu_cpio_unpacks_what_we_pack() {
        if Command::new("cpio").arg("--version").output().is_err() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("vmprobe-cpio-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let archive = dir.join("archive");
        let mut image = Initramfs {
            archive: Archive::default(),
            dirs: BTreeSet::new(),
        };
        image = image
            .file("/sub/run", b"#!", 0o755)
            .symlink("/link", "sub/run");
        std::fs::write(&archive, image.finish()).unwrap();
        let status = Command::new("cpio")
            .args(["-i", "--quiet"])
            .current_dir(&dir)
            .stdin(Stdio::from(std::fs::File::open(&archive).unwrap()))
            .status();
        assert!(status.unwrap().success());
        let meta = std::fs::metadata(dir.join("sub/run")).unwrap();
        assert_eq!((meta.size(), meta.permissions().mode() & 0o777), (2, 0o755));
        assert_eq!(
            std::fs::read_link(dir.join("link")).unwrap().to_str(),
            Some("sub/run")
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
