//! Names of files as the kernel gets them from programs: good, bad and long ones.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use serde_json::{Value, json};

use super::sys::check;

const PAGE: usize = 4096;
/// Bytes of a long name.
const LONG: usize = 300;
/// Pointers that aren't mapped: into the first page, outside this process's memory, a non-canonical one, into a hole in
/// the kernel's half, to the last byte of all.
const NOWHERE: [usize; 5] = [
    0,
    0x7fff_ffff_e000,
    0x8000_0000_0000,
    0xffff_8000_0000_0000,
    usize::MAX,
];

/// Opens files by all kinds of names, and reads `/init` into two buffers that have text, `count` times each.
pub fn run(count: u64) -> io::Result<Value> {
    let mut names = ["/nowhere", "/init"].map(str::to_owned).to_vec();
    names.push("n".repeat(LONG));
    let names = names.into_iter().map(CString::new);
    let names = names.collect::<Result<Vec<_>, _>>()?;
    // The bytes behind the name are this buffer's as well.
    let empty = [0_u8; 16];
    let pages = Pages::new()?;
    let mut pointers: Vec<usize> = NOWHERE.into();
    pointers.extend(names.iter().map(|name| name.as_ptr() as usize));
    pointers.extend([empty.as_ptr() as usize, pages.across(), pages.without_end()]);
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..count {
        for pointer in &pointers {
            // SAFETY: the call only reads at the pointer, or fails.
            let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, *pointer, 0, 0) };
            if fd < 0 {
                refused += 1;
                continue;
            }
            opened += 1;
            // SAFETY: the file was opened above, and nothing else knows its number.
            check(unsafe { libc::close(fd as libc::c_int) })?;
        }
        vectors()?;
    }
    Ok(json!({ "opened": opened, "refused": refused }))
}

/// Reads into two buffers that have text.
fn vectors() -> io::Result<()> {
    let file = File::open("/init")?;
    let (mut one, mut other) = (*b"one buffer's\0", *b"the other\0");
    let vectors = [&mut one[..], &mut other[..]].map(|buffer| libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    });
    // SAFETY: each vector is a buffer of this function's, which nothing else refers to during the call.
    let read = unsafe { libc::readv(file.as_raw_fd(), vectors.as_ptr(), 2) };
    match usize::try_from(read) {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Three pages, of which the last can't be accessed.
struct Pages(*mut u8);

impl Pages {
    fn new() -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping where the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), 3 * PAGE, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast::<u8>();
        // SAFETY: the first two pages are this value's own, and nothing else refers to them yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, 2 * PAGE) };
        bytes[PAGE - 3..][..7].copy_from_slice(b"/across");
        bytes[2 * PAGE - 8..].copy_from_slice(b"/endless");
        let last = start.wrapping_add(2 * PAGE).cast();
        // SAFETY: the page is this value's own, and has no reference to it.
        check(unsafe { libc::mprotect(last, PAGE, libc::PROT_NONE) })?;
        Ok(Self(start))
    }

    /// A name on two pages.
    fn across(&self) -> usize {
        self.0 as usize + PAGE - 3
    }

    /// A name without an end, up to the end of its memory.
    fn without_end(&self) -> usize {
        self.0 as usize + 2 * PAGE - 8
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.cast(), 3 * PAGE) };
    }
}
