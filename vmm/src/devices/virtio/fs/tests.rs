use std::{fs, os::unix::fs::symlink, path::Path};

use proptest::prelude::*;
use tempfile::TempDir;

use super::{device::FileSystemDevice, share::*};
use crate::devices::virtio::driver::{Buffer, Driver};

/// Where a request and its answer are in the guest's memory.
const REQUEST_AT: u64 = 0x10_0000;
const ANSWER_AT: u64 = 0x11_0000;
const ANSWER_LEN: u32 = 0x8000;

/// Operations (include/uapi/linux/fuse.h).
const LOOKUP: u32 = 1;
const READLINK: u32 = 5;
const MKNOD: u32 = 8;
const MKDIR: u32 = 9;
const UNLINK: u32 = 10;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const ROOT: u64 = 1;
/// Errors, as the answer's header has them.
const ENOENT: i32 = -libc::ENOENT;
const EROFS: i32 = -libc::EROFS;

struct Guest(Driver);

impl Guest {
    /// A guest that has mounted the share.
    fn with(share: &Share) -> Self {
        let device = FileSystemDevice::open(share).unwrap();
        let mut driver = Driver::started(Box::new(device));
        // Requests go to the second queue.
        driver.use_queue(1);
        let mut guest = Self(driver);
        let answer = guest.ask(INIT, 0, &init()).unwrap();
        assert_eq!(answer[..4], 7u32.to_le_bytes());
        guest
    }

    /// Makes a request about `node`. Returns the answer behind its header, or the error in that.
    fn ask(&mut self, operation: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let len = 40 + body.len() as u32;
        let request = [
            &words(&[len, operation])[..],
            &7u64.to_le_bytes(),
            &node.to_le_bytes(),
            &words(&[0, 0, 1, 0]),
            body,
        ]
        .concat();
        self.0.set_bytes(REQUEST_AT, &request);
        self.0.offer(&[
            Buffer {
                at: REQUEST_AT,
                len,
                writable: false,
            },
            Buffer {
                at: ANSWER_AT,
                len: ANSWER_LEN,
                writable: true,
            },
        ]);
        let filled = self.0.finished() as usize;
        assert!(filled >= 16, "an answer of {filled} bytes");
        let answer = self.0.bytes(ANSWER_AT, filled);
        match i32::from_le_bytes(answer[4..8].try_into().unwrap()) {
            0 => Ok(answer[16..].to_vec()),
            error => Err(error),
        }
    }

    fn look_up(&mut self, parent: u64, name: &str) -> Result<u64, i32> {
        let answer = self.ask(LOOKUP, parent, &[name.as_bytes(), &[0]].concat())?;
        Ok(u64::from_le_bytes(answer[..8].try_into().unwrap()))
    }

    fn open(&mut self, node: u64, operation: u32, flags: i32) -> Result<u64, i32> {
        let answer = self.ask(operation, node, &words(&[flags as u32, 0]))?;
        Ok(u64::from_le_bytes(answer[..8].try_into().unwrap()))
    }

    fn read(&mut self, node: u64, operation: u32, handle: u64) -> Result<Vec<u8>, i32> {
        self.ask(operation, node, &io_request(handle, 4096))
    }

    fn write(&mut self, node: u64, handle: u64, data: &[u8]) -> Result<(), i32> {
        let body = [&io_request(handle, data.len() as u32)[..], data].concat();
        self.ask(WRITE, node, &body).map(drop)
    }

    fn content(&mut self, name: &str) -> Result<Vec<u8>, i32> {
        let node = self.look_up(ROOT, name)?;
        let handle = self.open(node, OPEN, libc::O_RDONLY)?;
        self.read(node, READ, handle)
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `struct fuse_init_in` of a kernel that can do everything.
fn init() -> Vec<u8> {
    let mut request = vec![7, 41, 0x2_0000, u32::MAX, u32::MAX];
    request.resize(16, 0);
    words(&request)
}

/// `struct fuse_read_in` and `struct fuse_write_in`, from offset 0 on.
fn io_request(handle: u64, len: u32) -> Vec<u8> {
    [
        &handle.to_le_bytes()[..],
        &[0; 8],
        &words(&[len, 0]),
        &[0; 8],
        &words(&[0, 0]),
    ]
    .concat()
}

fn share(path: &Path, mode: ShareMode) -> Share {
    Share {
        tag: "root".to_owned(),
        path: path.into(),
        mode,
    }
}

/// A folder with a file, a folder and a link that leads out of it.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("file"), "content").unwrap();
    fs::create_dir(path.join("inner")).unwrap();
    fs::write(path.join("inner/deep"), "deep").unwrap();
    symlink("/etc/passwd", path.join("link")).unwrap();
    folder
}

#[test]
fn a_guest_reads_the_host_s_files_in_each_mode() {
    let folder = folder();
    for mode in [ShareMode::ReadOnly, ShareMode::ReadWrite] {
        let mut guest = Guest::with(&share(folder.path(), mode));
        assert_eq!(guest.content("file").unwrap(), b"content");
        let inner = guest.look_up(ROOT, "inner").unwrap();
        assert!(guest.look_up(inner, "deep").is_ok());
        let handle = guest.open(ROOT, OPENDIR, 0).unwrap();
        let listing = guest.read(ROOT, READDIR, handle).unwrap();
        for name in ["file", "inner", "link"] {
            let is_there = listing.windows(name.len()).any(|at| at == name.as_bytes());
            assert!(is_there, "{name}");
        }
    }
}

#[test]
fn no_name_leads_out_of_the_folder() {
    let folder = folder();
    let inside = folder.path().join("inner");
    let mut guest = Guest::with(&share(&inside, ShareMode::ReadWrite));
    for name in ["../file", "..", "/etc/passwd", "x/../../file", "", "."] {
        match guest.look_up(ROOT, name) {
            Err(_) => {}
            Ok(node) => assert_eq!(node, ROOT, "{name:?}"),
        }
    }
    let mut guest = Guest::with(&share(folder.path(), ShareMode::ReadWrite));
    let link = guest.look_up(ROOT, "link").unwrap();
    assert_eq!(guest.ask(READLINK, link, &[]).unwrap(), b"/etc/passwd");
    assert!(guest.open(link, OPEN, libc::O_RDONLY).is_err());
}

#[test]
fn a_read_only_share_refuses_every_change() {
    let folder = folder();
    let mut guest = Guest::with(&share(folder.path(), ShareMode::ReadOnly));
    let file = guest.look_up(ROOT, "file").unwrap();
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_TRUNC] {
        assert_eq!(guest.open(file, OPEN, flags), Err(EROFS));
    }
    let handle = guest.open(file, OPEN, libc::O_RDONLY).unwrap();
    assert_eq!(guest.write(file, handle, b"x"), Err(EROFS));
    let mkdir = [&words(&[0o755, 0])[..], b"new\0"].concat();
    assert_eq!(guest.ask(MKDIR, ROOT, &mkdir).map(drop), Err(EROFS));
    assert_eq!(guest.ask(UNLINK, ROOT, b"file\0").map(drop), Err(EROFS));
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"content");
}

#[test]
fn a_share_that_can_be_written_is_changed_on_the_host() {
    let folder = folder();
    let mut guest = Guest::with(&share(folder.path(), ShareMode::ReadWrite));
    let file = guest.look_up(ROOT, "file").unwrap();
    let handle = guest.open(file, OPEN, libc::O_RDWR).unwrap();
    guest.write(file, handle, b"CON").unwrap();
    let inner = guest.look_up(ROOT, "inner").unwrap();
    guest.ask(UNLINK, inner, b"deep\0").unwrap();
    assert_eq!(guest.content("file").unwrap(), b"CONtent");
    assert_eq!(guest.look_up(inner, "deep"), Err(ENOENT));
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"CONtent");
    assert!(!folder.path().join("inner/deep").exists());
}

#[test]
fn a_guest_makes_pipes_and_files_on_the_host_but_no_devices() {
    let folder = folder();
    let mut guest = Guest::with(&share(folder.path(), ShareMode::ReadWrite));
    for (kind, expected) in [
        (libc::S_IFCHR, Err(-libc::EPERM)),
        (libc::S_IFBLK, Err(-libc::EPERM)),
        (libc::S_IFIFO, Ok(())),
        (libc::S_IFREG, Ok(())),
    ] {
        let name = format!("made-{kind:o}");
        let body = [
            &words(&[kind | 0o600, 0x0103, 0, 0])[..],
            name.as_bytes(),
            &[0],
        ]
        .concat();
        assert_eq!(guest.ask(MKNOD, ROOT, &body).map(drop), expected, "{name}");
        assert_eq!(folder.path().join(&name).exists(), expected.is_ok());
    }
}

#[test]
fn a_device_that_was_reset_serves_again_and_has_nothing_open() {
    let folder = folder();
    let mut guest = Guest::with(&share(folder.path(), ShareMode::ReadOnly));
    let file = guest.look_up(ROOT, "file").unwrap();
    let handle = guest.open(file, OPEN, libc::O_RDONLY).unwrap();
    guest.0.reset();
    guest.0.start();
    guest.ask(INIT, 0, &init()).unwrap();
    assert!(guest.read(file, READ, handle).is_err());
    assert_eq!(guest.content("file").unwrap(), b"content");
}

#[test]
fn a_share_that_can_not_be_is_refused_by_name() {
    let folder = folder();
    let refused = |tag: &str, path: &Path, mode: ShareMode| {
        let share = Share {
            tag: tag.to_owned(),
            ..share(path, mode)
        };
        FileSystemDevice::open(&share).err().unwrap()
    };
    for tag in ["", "a\0b", &"x".repeat(37)] {
        let error = refused(tag, folder.path(), ShareMode::ReadOnly);
        assert!(matches!(error, ShareError::Tag { .. }), "{error}");
    }
    for path in ["missing", "file"] {
        let error = refused("t", &folder.path().join(path), ShareMode::ReadOnly);
        assert!(matches!(error, ShareError::Folder { .. }), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever a guest asks for, in requests of any form, the share answers the next good one, and nothing
    /// outside the folder changes.
    #[test]
    fn hostile_requests_do_no_harm(
        requests in prop::collection::vec(
            (0u32..60, 0u64..6, prop::collection::vec(any::<u8>(), 0..200), -40i32..40, 1u32..200),
            1..40,
        ),
    ) {
        let outer = folder();
        let inner = share(&outer.path().join("inner"), ShareMode::ReadOnly);
        let mut guest = Guest::with(&inner);
        guest.look_up(ROOT, "deep").unwrap();
        for (operation, node, body, more, room) in requests {
            let told = (40 + body.len() as i32 + more).max(0) as u32;
            let request = [
                &words(&[told, operation])[..],
                &7u64.to_le_bytes(),
                &node.to_le_bytes(),
                &words(&[0, 0, 1, 0]),
                &body,
            ]
            .concat();
            guest.0.set_bytes(REQUEST_AT, &request);
            let part = |at, len, writable| Buffer { at, len, writable };
            guest.0.offer(&[
                part(REQUEST_AT, request.len() as u32, false),
                part(ANSWER_AT, room, true),
            ]);
            guest.0.finished();
        }
        guest.0.reset();
        guest.0.start();
        guest.ask(INIT, 0, &init()).unwrap();
        guest.look_up(ROOT, "deep").unwrap();
        prop_assert_eq!(fs::read(outer.path().join("file")).unwrap(), b"content");
        prop_assert_eq!(fs::read(outer.path().join("inner/deep")).unwrap(), b"deep");
    }
}
