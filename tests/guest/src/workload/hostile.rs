//! Numbers passed to system calls, which are pointers to all kinds of memory and to none.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::sys::check;
use super::threads::{online_cpus, pin_to};

const PAGE: usize = 4096;
/// The word at the beginning of this program's memory.
const WORD: u64 = 0x1122_3344_5566_7788;
/// Addresses that aren't canonical or aren't mapped: in the processes' half, in the kernel's half, and the last byte of
/// all.
const NOWHERE: [u64; 9] = [
    0,
    0xfff,
    0x7fff_ffff_f000,
    0x8000_0000_0000,
    0x7fff_ffff_ffff_fff9,
    0x8000_0000_0000_0000,
    0xffff_7fff_ffff_ffff,
    0xffff_8000_0000_0000,
    u64::MAX,
];
/// Where the kernel maps single pages permanently, including those of devices such as the local APIC (`FIXADDR_TOP` in
/// `arch/x86/include/asm/fixmap.h`).
const FIXED: std::ops::Range<u64> = 0xffff_ffff_ff20_0000..0xffff_ffff_ff80_0000;
/// The local APIC's place in the kernel's direct mapping. As it isn't memory, it isn't mapped there.
const APIC: u64 = 0xffff_8880_fee0_0000;
/// The setting for real addresses in `/proc/vmallocinfo`, and the value for it.
const RESTRICT: (&str, &str) = ("/proc/sys/kernel/kptr_restrict", "1");
/// Guard pages behind the kernel's areas that are tried.
const GUARDS: usize = 64;

/// Makes `getpgid` of pointers of every kind, one after the other, and reports how many there were of each kind.
pub fn run() -> io::Result<Value> {
    let mine = Mapping::new(-1)?;
    let closed = Mapping::new(-1)?;
    closed.protect()?;
    let secret = secret()?;
    let guards = guards()?;
    let kinds: [(&str, Vec<u64>); 7] = [
        ("mapped", vec![mine.address()]),
        ("secret", secret.iter().map(Mapping::address).collect()),
        ("nowhere", NOWHERE.to_vec()),
        ("protected", vec![closed.address()]),
        ("guard", guards),
        ("device", vec![APIC]),
        ("fixed", FIXED.step_by(PAGE).collect()),
    ];
    let mut given = Vec::new();
    for (kind, pointers) in &kinds {
        pointers.iter().copied().for_each(give);
        given.push(json!([kind, pointers.len()]));
    }
    Ok(json!({ "given": given, "word": WORD }))
}

/// Makes `getpgid` of one pointer `count` times, while a thread on another CPU maps and unmaps the page that it points
/// to.
pub fn unmapped_meanwhile(count: u64) -> io::Result<Value> {
    let cpus = online_cpus()?;
    let [first, second] = cpus[..] else {
        return Err(io::Error::other("it takes two CPUs"));
    };
    let place = Mapping::new(-1)?;
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin_to(&[second])?;
            let mut rounds = 0_u64;
            while !ended.load(Ordering::Relaxed) {
                place.renew()?;
                rounds += 1;
            }
            io::Result::Ok(rounds)
        });
        let pinned = pin_to(&[first]);
        (0..count).for_each(|_| give(place.address()));
        ended.store(true, Ordering::Relaxed);
        let rounds = other.join();
        pinned?;
        let rounds = rounds.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
        pin_to(&cpus)?;
        Ok(json!({ "calls": count, "rounds": rounds }))
    })
}

fn give(pointer: u64) {
    // SAFETY: the call takes a number, and finds no process of it or this one's group.
    unsafe { libc::syscall(libc::SYS_getpgid, pointer) };
}

/// A page that isn't in the kernel's direct mapping (`memfd_secret(2)`); `None` in a kernel without such pages.
fn secret() -> io::Result<Option<Mapping>> {
    // SAFETY: the call makes a file and touches no memory of this program's.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) };
    let Ok(fd @ 0..) = libc::c_int::try_from(fd) else {
        return Ok(None);
    };
    // SAFETY: the call has just made it, and nothing else knows it.
    let _file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the file is open.
    check(unsafe { libc::ftruncate(fd, PAGE as libc::off_t) })?;
    Mapping::new(fd).map(Some)
}

/// The last pages of areas of the kernel's, where nothing is mapped (`mm/vmalloc.c`).
fn guards() -> io::Result<Vec<u64>> {
    let (switch, real) = RESTRICT;
    let before = fs::read_to_string(switch)?;
    fs::write(switch, real)?;
    let areas = fs::read_to_string("/proc/vmallocinfo");
    fs::write(switch, before)?;
    let end_of = |line: &str| {
        let range = line.split_whitespace().next()?;
        let (_, end) = range.split_once('-')?;
        u64::from_str_radix(end.trim_start_matches("0x"), 16).ok()
    };
    // Areas with pages have a guard page; other areas may not.
    let areas = areas?;
    let of_pages = areas.lines().filter(|line| line.contains(" pages="));
    let ends = of_pages.filter_map(end_of).take(GUARDS);
    Ok(ends.map(|end| end - PAGE as u64).collect())
}

/// A page of memory that begins with [`WORD`].
struct Mapping(*mut libc::c_void);

// SAFETY: threads don't read the page's content; only its address is passed on.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a page of a file, or of no file with -1.
    fn new(fd: libc::c_int) -> io::Result<Self> {
        Self::at(ptr::null_mut(), 0, fd)
    }

    fn at(place: *mut libc::c_void, flag: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let kind = match fd {
            0.. => libc::MAP_SHARED,
            _ => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        };
        // SAFETY: a new mapping, where the kernel chooses, or with MAP_FIXED in the place of one of ours that nothing
        // refers to.
        let start = unsafe { libc::mmap(place, PAGE, protection, kind | flag, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the page is this value's own and aligned.
        unsafe { start.cast::<u64>().write_volatile(WORD) };
        Ok(Self(start))
    }

    fn address(&self) -> u64 {
        self.0 as u64
    }

    /// Unmaps the page, and maps another one at its place.
    fn renew(&self) -> io::Result<()> {
        // SAFETY: nothing refers to the page.
        check(unsafe { libc::munmap(self.0, PAGE) })?;
        let new = Self::at(self.0, libc::MAP_FIXED, -1)?;
        // The page belongs to `self`.
        std::mem::forget(new);
        Ok(())
    }

    /// Forbids any access to it.
    fn protect(&self) -> io::Result<()> {
        // SAFETY: nothing refers to the page.
        check(unsafe { libc::mprotect(self.0, PAGE, libc::PROT_NONE) }).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the page is this value's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.0, PAGE) };
    }
}
