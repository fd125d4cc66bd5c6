//! The process of an emulator, which never outlives this one.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel's command line in L1, for each emulator. `panic=-1` makes a panic the end of the machine, which isn't
/// allowed to start again; without mitigations each exit of a guest is about what it is on a real machine. All emulated
/// CPUs share one time stamp counter, which L1 would distrust on a busy host and put its guests' clocks on a slow
/// device instead. On such a host it would take the emulated timer for broken, too, and panic. The self-tests of its
/// cryptography only take time.
pub(crate) const COMMAND_LINE: &str = "console=ttyS0,115200 panic=-1 oops=panic mitigations=off \
     tsc=reliable no_timer_check cryptomgr.notests";

/// What to boot.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    pub(crate) smp: u8,
    pub(crate) memory_mib: u32,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: Vec<u8>,
    /// An existing file for the console and for the emulator's own messages.
    pub(crate) log: &'a Path,
    pub(crate) live_console: bool,
}

/// A running emulator; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

/// A running lab machine, and the receiving end of its second serial port, which reads as ended when
/// the emulator ends.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) report: OwnedFd,
}

impl Process {
    /// Starts an emulator, which inherits these descriptors. Its own messages go into the log.
    ///
    /// It is killed when the calling thread ends, too, so call this from one that stays.
    pub(crate) fn start(
        command: &mut Command,
        inherited: Vec<RawFd>,
        log: &Path,
    ) -> io::Result<Self> {
        command
            .stdin(Stdio::null())
            .stderr(File::options().append(true).open(log)?);
        let parent = std::process::id();
        // SAFETY: between fork and exec `prepare_child` makes system calls only; it neither
        // allocates nor takes locks.
        unsafe { command.pre_exec(move || prepare_child(parent, &inherited)) };
        Ok(Self {
            child: command.spawn()?,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs in the child: keeps these descriptors, and makes it die with the parent.
fn prepare_child(parent: u32, inherited: &[RawFd]) -> io::Result<()> {
    for fd in inherited {
        // SAFETY: the descriptor is open in the parent, so it is here; no memory is involved.
        check(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
    }
    // SAFETY: no memory is involved.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // SAFETY: it can't fail and involves no memory.
    let now = unsafe { libc::getppid() };
    if u32::try_from(now) == Ok(parent) {
        Ok(())
    } else {
        // The parent died before the signal was requested.
        Err(io::Error::from_raw_os_error(libc::ECHILD))
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A file without a name, so that nothing is left behind however this process ends, with what
/// `write` puts into it.
pub(crate) fn unnamed_file(
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<File> {
    static FILE: AtomicU32 = AtomicU32::new(0);
    let name = FILE.fetch_add(1, Ordering::Relaxed);
    let name = format!("vmprobe-lab-{}-{name}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    write(&mut file)?;
    Ok(file)
}
