//! The QEMU process: its arguments, and that it never outlives us.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::qemu::Qemu;

/// The kernel's command line in L1. `panic=-1` with QEMU's `-no-reboot` makes a panic the end of
/// the machine; without mitigations each exit of a guest is about what it is on a real machine. All
/// emulated CPUs share one time stamp counter, which L1 would distrust on a busy host and put its
/// guests' clocks on a slow device instead. On such a host it would take the emulated timer for
/// broken, too, and panic.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=-1 oops=panic mitigations=off tsc=reliable no_timer_check";

/// What to boot.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    pub(crate) smp: u8,
    pub(crate) memory_mib: u32,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: File,
    /// An existing file for the console and for QEMU's own messages.
    pub(crate) log: &'a Path,
    pub(crate) live_console: bool,
}

/// A running QEMU; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts QEMU. Returns with it the other end of L1's second serial port, which reads as ended
    /// when QEMU ends.
    ///
    /// QEMU is killed when the calling thread ends, too, so call this from one that stays.
    pub(crate) fn start(qemu: &Qemu, options: &mut Options<'_>) -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let initramfs = options.initramfs.as_raw_fd();
        let mut command = Command::new(&qemu.program);
        for dir in &qemu.firmware {
            command.arg("-L").arg(dir);
        }
        command
            .args([
                "-machine",
                "q35,hpet=off",
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "EPYC,+svm,+npt",
            ])
            .args([
                "-smp",
                &options.smp.to_string(),
                "-m",
                &options.memory_mib.to_string(),
            ])
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-no-reboot",
            ])
            .arg("-kernel")
            .arg(options.kernel)
            .args([
                "-initrd",
                &format!("/proc/self/fd/{initramfs}"),
                "-append",
                COMMAND_LINE,
            ])
            .arg("-chardev")
            .arg(console(options.log))
            .args([
                "-chardev",
                &format!("socket,id=report,fd={}", theirs.as_raw_fd()),
            ])
            .args(["-serial", "chardev:console", "-serial", "chardev:report"])
            .stdin(Stdio::null())
            .stderr(File::options().append(true).open(options.log)?);
        if options.live_console {
            command.stdout(io::stderr());
        } else {
            command.stdout(Stdio::null());
        }
        let parent = std::process::id();
        let inherited = [initramfs, theirs.as_raw_fd()];
        // SAFETY: between fork and exec `prepare_child` makes system calls only; it neither
        // allocates nor takes locks.
        unsafe { command.pre_exec(move || prepare_child(parent, inherited)) };
        let child = command.spawn()?;
        // `theirs` is closed here: only QEMU's copy keeps the line open.
        Ok((Self { child }, ours))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// L1's console: standard output, and the log.
fn console(log: &Path) -> OsString {
    let mut text = OsString::from("stdio,id=console,signal=off,logappend=on,logfile=");
    // QEMU's option syntax doubles a comma inside a value.
    text.push(log.to_string_lossy().replace(',', ",,"));
    text
}

/// In the child: keep these descriptors, and die with the parent.
fn prepare_child(parent: u32, inherited: [RawFd; 2]) -> io::Result<()> {
    for fd in inherited {
        // SAFETY: the descriptor is open in the parent, so it is here; no memory is involved.
        check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })?;
    }
    // SAFETY: no memory is involved.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // SAFETY: it can't fail and involves no memory.
    let now = unsafe { libc::getppid() };
    if u32::try_from(now) == Ok(parent) {
        Ok(())
    } else {
        // The parent died before the signal was asked for.
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
