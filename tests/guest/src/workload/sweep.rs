//! A little of every kind of work, so that many functions of the kernel run.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::ptr;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::sys::{check, fork, wait_for};
use super::{nested, processes};

/// The only argument of a process that ends at once.
pub const CHILD: &str = "child";

/// One kind of work.
type Work = (&'static str, fn() -> io::Result<()>);

const WORK: &[Work] = &[
    ("files", files),
    ("folders", folders),
    ("mounts", mounts),
    ("proc", proc_files),
    ("pipes", || processes::pipes(5).map(drop)),
    ("forks", || processes::forks(3).map(drop)),
    ("exec", exec),
    ("threads", threads),
    ("memory", memory),
    ("signals", signals),
    ("timers", timers),
    ("local sockets", local_sockets),
    ("network", network),
    ("epoll", || nested::run(2).map(drop)),
    ("small calls", small_calls),
];

/// Does all of it, `count` times. Reports the kinds of work that fail.
pub fn run(count: u64) -> io::Result<Value> {
    loopback_up()?;
    for _ in 0..count {
        for (name, work) in WORK {
            work().map_err(|error| io::Error::other(format!("{name}: {error}")))?;
        }
    }
    Ok(json!({ "rounds": count, "kinds": WORK.len() }))
}

fn files() -> io::Result<()> {
    let path = "/tmp/sweep";
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(path)?;
    file.write_all(&[7; 10_000])?;
    file.seek(SeekFrom::Start(5000))?;
    let mut back = Vec::new();
    file.read_to_end(&mut back)?;
    file.set_len(100)?;
    file.sync_all()?;
    // SAFETY: no memory is involved.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) })?;
    drop(file.try_clone()?);
    fs::copy(path, "/tmp/sweep2")?;
    fs::hard_link(path, "/tmp/sweep3")?;
    fs::rename("/tmp/sweep2", "/tmp/sweep4")?;
    for name in ["/tmp/sweep", "/tmp/sweep3", "/tmp/sweep4"] {
        fs::metadata(name)?;
        fs::remove_file(name)?;
    }
    if back == [7; 5000] {
        Ok(())
    } else {
        Err(io::Error::other("a file gave back other bytes"))
    }
}

fn folders() -> io::Result<()> {
    fs::create_dir_all("/tmp/a/b/c")?;
    std::os::unix::fs::symlink("a/b", "/tmp/link")?;
    fs::write("/tmp/link/c/file", "text")?;
    let there = fs::read_dir("/tmp/link/c")?.count();
    fs::canonicalize("/tmp/link/c/../c/file")?;
    fs::remove_file("/tmp/link")?;
    fs::remove_dir_all("/tmp/a")?;
    if there == 1 {
        Ok(())
    } else {
        Err(io::Error::other("a folder lists what it doesn't have"))
    }
}

fn mounts() -> io::Result<()> {
    fs::create_dir_all("/tmp/mount")?;
    crate::machine::mount(c"tmpfs", c"/tmp/mount")?;
    fs::write("/tmp/mount/file", "text")?;
    let target = c"/tmp/mount";
    // SAFETY: the string ends in NUL.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) })?;
    fs::remove_dir("/tmp/mount")
}

fn proc_files() -> io::Result<()> {
    const FILES: [&str; 14] = [
        "/proc/meminfo",
        "/proc/stat",
        "/proc/interrupts",
        "/proc/mounts",
        "/proc/vmstat",
        "/proc/loadavg",
        "/proc/cpuinfo",
        "/proc/net/dev",
        "/proc/self/stat",
        "/proc/self/status",
        "/proc/self/maps",
        "/proc/self/smaps_rollup",
        "/proc/self/io",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ];
    // Some kernels lack some of the files.
    FILES.iter().for_each(|file| drop(fs::read(file)));
    fs::read_dir("/proc/self/task")?.try_for_each(|entry| entry.map(drop))?;
    fs::read_dir("/sys/class")?.try_for_each(|entry| entry.map(drop))
}

fn exec() -> io::Result<()> {
    let status = Command::new("/init").arg(CHILD).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("a program ended with {status}")))
    }
}

fn threads() -> io::Result<()> {
    let (turn, changed) = (Mutex::new(0), Condvar::new());
    thread::scope(|scope| {
        for own in 0..4 {
            let (turn, changed) = (&turn, &changed);
            scope.spawn(move || {
                let turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                let turn = changed.wait_while(turn, |turn| *turn != own);
                *turn.unwrap_or_else(PoisonError::into_inner) += 1;
                changed.notify_all();
                thread::yield_now();
            });
        }
    });
    Ok(())
}

fn memory() -> io::Result<()> {
    const LENGTH: usize = 64 * 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel chooses.
    let start = unsafe { libc::mmap(ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all of it is mapped, writable, and this function's own.
    unsafe { ptr::write_bytes(start.cast::<u8>(), 1, LENGTH) };
    // A child writes to its copy.
    let copied = fork(|| {
        // SAFETY: as above, in the child's copy.
        unsafe { ptr::write_bytes(start.cast::<u8>(), 2, LENGTH) };
        0
    })
    .and_then(wait_for);
    // SAFETY: nothing refers to the memory that these calls remove.
    let advised = unsafe { libc::madvise(start, LENGTH / 2, libc::MADV_DONTNEED) };
    // SAFETY: as above.
    let protected = unsafe { libc::mprotect(start, LENGTH / 4, libc::PROT_READ) };
    // SAFETY: as above.
    let unmapped = unsafe { libc::munmap(start, LENGTH) };
    copied?;
    check(advised | protected | unmapped).map(drop)
}

extern "C" fn handler(_: libc::c_int) {}

fn signals() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int) = handler;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    for _ in 0..3 {
        // SAFETY: a signal to itself, which it handles.
        check(unsafe { libc::raise(libc::SIGUSR1) })?;
    }
    let child = fork(|| {
        loop {
            // SAFETY: waits for the signal that ends it.
            unsafe { libc::pause() };
        }
    })?;
    // SAFETY: the child isn't waited for yet, so the number is still its own.
    check(unsafe { libc::kill(child, libc::SIGKILL) })?;
    super::sys::wait(child).map(drop)
}

fn timers() -> io::Result<()> {
    thread::sleep(Duration::from_micros(200));
    // SAFETY: no memory is involved.
    let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) })?;
    // SAFETY: the call above made this descriptor, and nothing else owns it.
    let timer = unsafe { OwnedFd::from_raw_fd(fd) };
    let time = |nanoseconds| libc::timespec {
        tv_sec: 0,
        tv_nsec: nanoseconds,
    };
    let setting = libc::itimerspec {
        it_interval: time(0),
        it_value: time(100_000),
    };
    // SAFETY: the setting lives for the call; the old one isn't asked for.
    check(unsafe { libc::timerfd_settime(fd, 0, &setting, ptr::null_mut()) })?;
    File::from(timer).read_exact(&mut [0; 8])
}

fn local_sockets() -> io::Result<()> {
    let (mut one, mut other) = UnixStream::pair()?;
    one.write_all(&[3; 3000])?;
    other.read_exact(&mut [0; 3000])?;
    other.set_read_timeout(Some(Duration::from_millis(1)))?;
    drop(one);
    match other.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("a closed socket gave a byte")),
    }
}

fn network() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.write_all(&[5; 5000])?;
    let mut bytes = [0; 5000];
    server.read_exact(&mut bytes)?;
    let (one, other) = (
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    );
    one.send_to(&bytes[..100], other.local_addr()?)?;
    other.recv(&mut bytes).map(drop)
}

fn small_calls() -> io::Result<()> {
    const CALLS: [libc::c_long; 5] = [
        libc::SYS_sched_yield,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_getpgrp,
        libc::SYS_sync,
    ];
    for number in CALLS {
        // SAFETY: these calls take no arguments.
        check(unsafe { libc::syscall(number) } as libc::c_int)?;
    }
    // SAFETY: no memory is involved.
    let fd = check(unsafe { libc::eventfd(1, libc::EFD_CLOEXEC) })?;
    // SAFETY: the call made this descriptor, and nothing else owns it.
    let event = unsafe { OwnedFd::from_raw_fd(fd) };
    File::from(event).read_exact(&mut [0; 8])
}

/// Brings `lo` up.
fn loopback_up() -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: an all-zero ifreq is valid: a name of NULs and integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which lives for the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) }).map(drop)
}
