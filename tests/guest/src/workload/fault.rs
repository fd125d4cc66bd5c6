//! Bad pointers: instructions of the kernel that fault and are fixed up.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::ptr;

use serde_json::{Value, json};

use super::sys::check;

const PAGE: usize = 4096;

/// Whether the kernel reads or writes at the pointer. If it writes, a read-only page is bad too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Reads,
    Writes,
}

/// A system call with its arguments, of which `BAD` is the bad pointer and `FILE` an open file.
struct Call(libc::c_long, Access, [usize; 4]);

const BAD: usize = usize::MAX;
const FILE: usize = usize::MAX - 1;
const AT_CWD: usize = libc::AT_FDCWD as usize;
const NONE: usize = 0;

/// Calls that use each way of the kernel's to user memory: copies of many sizes, single values,
/// strings, vectors, clearing.
const CALLS: &[Call] = &[
    Call(libc::SYS_read, Access::Writes, [FILE, BAD, 64, NONE]),
    Call(libc::SYS_pread64, Access::Writes, [FILE, BAD, 4096, NONE]),
    Call(libc::SYS_readv, Access::Reads, [FILE, BAD, 2, NONE]),
    Call(libc::SYS_openat, Access::Reads, [AT_CWD, BAD, NONE, NONE]),
    Call(
        libc::SYS_newfstatat,
        Access::Reads,
        [AT_CWD, BAD, BAD, NONE],
    ),
    Call(libc::SYS_fstat, Access::Writes, [FILE, BAD, NONE, NONE]),
    Call(libc::SYS_statfs, Access::Reads, [BAD, BAD, NONE, NONE]),
    Call(libc::SYS_fstatfs, Access::Writes, [FILE, BAD, NONE, NONE]),
    Call(libc::SYS_readlinkat, Access::Reads, [AT_CWD, BAD, BAD, 64]),
    Call(libc::SYS_pipe2, Access::Writes, [BAD, NONE, NONE, NONE]),
    Call(libc::SYS_nanosleep, Access::Reads, [BAD, NONE, NONE, NONE]),
    Call(
        libc::SYS_clock_gettime,
        Access::Writes,
        [1, BAD, NONE, NONE],
    ),
    Call(libc::SYS_clock_getres, Access::Writes, [1, BAD, NONE, NONE]),
    Call(
        libc::SYS_gettimeofday,
        Access::Writes,
        [BAD, NONE, NONE, NONE],
    ),
    Call(libc::SYS_times, Access::Writes, [BAD, NONE, NONE, NONE]),
    Call(libc::SYS_uname, Access::Writes, [BAD, NONE, NONE, NONE]),
    Call(libc::SYS_sysinfo, Access::Writes, [BAD, NONE, NONE, NONE]),
    Call(libc::SYS_getcwd, Access::Writes, [BAD, 64, NONE, NONE]),
    Call(libc::SYS_getrusage, Access::Writes, [NONE, BAD, NONE, NONE]),
    Call(libc::SYS_getitimer, Access::Writes, [NONE, BAD, NONE, NONE]),
    Call(libc::SYS_getresuid, Access::Writes, [BAD, BAD, BAD, NONE]),
    Call(libc::SYS_prlimit64, Access::Writes, [NONE, 7, NONE, BAD]),
    Call(libc::SYS_rt_sigaction, Access::Reads, [10, BAD, NONE, 8]),
    Call(libc::SYS_rt_sigaction, Access::Writes, [10, NONE, BAD, 8]),
    Call(
        libc::SYS_rt_sigprocmask,
        Access::Reads,
        [NONE, BAD, NONE, 8],
    ),
    Call(
        libc::SYS_rt_sigprocmask,
        Access::Writes,
        [NONE, NONE, BAD, 8],
    ),
    Call(
        libc::SYS_rt_sigpending,
        Access::Writes,
        [BAD, 8, NONE, NONE],
    ),
    Call(
        libc::SYS_sigaltstack,
        Access::Writes,
        [NONE, BAD, NONE, NONE],
    ),
    Call(libc::SYS_getrandom, Access::Writes, [BAD, 32, NONE, NONE]),
    Call(libc::SYS_poll, Access::Reads, [BAD, 2, NONE, NONE]),
    Call(libc::SYS_select, Access::Reads, [8, BAD, NONE, NONE]),
    Call(libc::SYS_execve, Access::Reads, [BAD, NONE, NONE, NONE]),
    Call(
        libc::SYS_prctl,
        Access::Reads,
        [libc::PR_SET_NAME as usize, BAD, NONE, NONE],
    ),
    Call(
        libc::SYS_prctl,
        Access::Writes,
        [libc::PR_GET_NAME as usize, BAD, NONE, NONE],
    ),
    Call(libc::SYS_futex, Access::Reads, [BAD, NONE, 1, NONE]),
    Call(
        libc::SYS_sched_getaffinity,
        Access::Writes,
        [NONE, 8, BAD, NONE],
    ),
    Call(
        libc::SYS_sched_getparam,
        Access::Writes,
        [NONE, BAD, NONE, NONE],
    ),
    Call(libc::SYS_epoll_pwait2, Access::Reads, [FILE, BAD, 1, BAD]),
    Call(libc::SYS_sethostname, Access::Reads, [BAD, 16, NONE, NONE]),
    Call(libc::SYS_chdir, Access::Reads, [BAD, NONE, NONE, NONE]),
    Call(libc::SYS_mount, Access::Reads, [BAD, BAD, BAD, NONE]),
    Call(libc::SYS_clone3, Access::Reads, [BAD, 88, NONE, NONE]),
    Call(libc::SYS_process_vm_readv, Access::Reads, [1, BAD, 1, BAD]),
];

/// Makes each call with each kind of bad pointer, `count` times. In between, reads files into fresh pages, which the
/// kernel's copies fault in. Counts how the calls ended; `other` has the number of the call, the pointer and the error
/// if that isn't `EFAULT`.
pub fn run(count: u64) -> io::Result<Value> {
    let pages = Pages::new()?;
    let file = File::open("/init")?;
    let (mut faulted, mut copied) = (0_u64, 0_u64);
    let mut other: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..count {
        for call in CALLS {
            for (pointer, only_writes) in pages.bad() {
                if only_writes && call.1 == Access::Reads {
                    continue;
                }
                match call.make(&file, pointer) {
                    Some(libc::EFAULT) => faulted += 1,
                    error => {
                        let what = format!("{} at {pointer:#x}: {error:?}", call.0);
                        *other.entry(what).or_default() += 1;
                    }
                }
            }
        }
        copied += fault_in()?;
    }
    Ok(json!({ "faulted": faulted, "other": other, "copied": copied, "calls": CALLS.len() }))
}

impl Call {
    /// The error of the call.
    fn make(&self, file: &File, pointer: usize) -> Option<i32> {
        let fd = file.as_raw_fd() as usize;
        let [a, b, c, d] = self.2.map(|argument| match argument {
            BAD => pointer,
            FILE => fd,
            value => value,
        });
        // SAFETY: the pointer leads to no memory that this program uses, and no call of the table
        // changes what it relies on when that fails or succeeds.
        let result = unsafe { libc::syscall(self.0, a, b, c, d, 0_usize, 0_usize) };
        (result == -1)
            .then(io::Error::last_os_error)
            .and_then(|error| error.raw_os_error())
    }
}

/// Pages of this process: one read-only, one without access, one that is unmapped; in this order.
struct Pages(usize);

impl Pages {
    fn new() -> io::Result<Self> {
        let start = map(4 * PAGE)?;
        for (page, protection) in [(1, libc::PROT_READ), (2, libc::PROT_NONE)] {
            let at = (start + page * PAGE) as *mut libc::c_void;
            // SAFETY: the page is this function's own, and has no reference to it.
            check(unsafe { libc::mprotect(at, PAGE, protection) })?;
        }
        let last = (start + 3 * PAGE) as *mut libc::c_void;
        // SAFETY: as above.
        check(unsafe { libc::munmap(last, PAGE) })?;
        Ok(Self(start))
    }

    /// Bad pointers, each with true if it is bad only for the kernel's writes.
    fn bad(&self) -> [(usize, bool); 9] {
        [
            (0x10, false),
            (self.0 + PAGE, true),
            (self.0 + 2 * PAGE, false),
            (self.0 + 2 * PAGE + 5, false),
            (self.0 + 3 * PAGE, false),
            // The last page of user space, the first address that isn't canonical, the first of the kernel's, the
            // kernel's text.
            (0x7fff_ffff_e000, false),
            (0x8000_0000_0000, false),
            (0xffff_8000_0000_0000, false),
            (0xffff_ffff_8100_0000, false),
        ]
    }
}

/// Reads the start of a file into untouched pages. Returns how many bytes were right.
fn fault_in() -> io::Result<u64> {
    let mut expected = vec![0; 3 * PAGE];
    File::open("/init")?.read_exact(&mut expected)?;
    let start = map(3 * PAGE)?;
    // SAFETY: the mapping is as long, zero, and this function's own until it unmaps it below.
    let fresh = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, 3 * PAGE) };
    // The reads cross pages, as they have odd lengths.
    let mut file = File::open("/init")?;
    let mut at = 0;
    while at < fresh.len() {
        let end = (at + 1001).min(fresh.len());
        file.read_exact(&mut fresh[at..end])?;
        at = end;
    }
    let right = *fresh == expected[..];
    // SAFETY: nothing refers to it any more.
    check(unsafe { libc::munmap(start as *mut libc::c_void, 3 * PAGE) })?;
    if right {
        Ok(expected.len() as u64)
    } else {
        Err(io::Error::other(
            "a read gave other bytes than the file has",
        ))
    }
}

fn map(length: usize) -> io::Result<usize> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel chooses.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(start as usize)
    }
}
