//! What PID 1 does to the guest as a whole: mounts, the kernel's log level, the end.

use std::ffi::CStr;
use std::fs;
use std::io;

use crate::plan::End;

/// A file system that can't be mounted.
#[derive(Debug, thiserror::Error)]
#[error("can't mount {target}")]
pub struct MountError {
    target: String,
    source: io::Error,
}

/// Mounts `/proc`, `/sys`, `/dev` and `/tmp`.
pub fn mount_all() -> Result<(), MountError> {
    const MOUNTS: [(&CStr, &CStr); 4] = [
        (c"proc", c"/proc"),
        (c"sysfs", c"/sys"),
        (c"devtmpfs", c"/dev"),
        (c"tmpfs", c"/tmp"),
    ];
    for (kind, target) in MOUNTS {
        let path = target.to_string_lossy();
        let mounted = fs::create_dir_all(path.as_ref()).and_then(|()| mount(kind, target));
        mounted.map_err(|source| MountError {
            target: path.into_owned(),
            source,
        })?;
    }
    Ok(())
}

/// Mounts a file system that has no device. It may be mounted already.
pub fn mount(kind: &CStr, target: &CStr) -> io::Result<()> {
    // SAFETY: the strings end in NUL and outlive the call; these file systems take no data.
    let result = unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Keeps the kernel's information and warnings off the console, where they could split a report;
/// errors and worse still come through.
pub fn quiet_kernel() {
    // syslog(2): action 8 sets the console's level; messages below it are printed.
    const CONSOLE_LEVEL: libc::c_int = 8;
    const UP_TO_ERRORS: libc::c_int = 4;
    // SAFETY: this action reads no buffer. If it fails, the console is only noisier.
    unsafe { libc::klogctl(CONSOLE_LEVEL, std::ptr::null_mut(), UP_TO_ERRORS) };
}

/// Ends the guest in this way. If that way fails, PID 1 exits, and so the kernel panics.
pub fn end(end: End) {
    match end {
        End::PowerOff => reboot(libc::RB_POWER_OFF),
        End::Reboot => reboot(libc::RB_AUTOBOOT),
        // On a failure, PID 1 exits, as in the other cases.
        End::Crash => drop(fs::write("/proc/sysrq-trigger", "c")),
        End::Panic => {}
        End::Stay => loop {
            std::thread::park();
        },
    }
}

fn reboot(how: libc::c_int) {
    // SAFETY: no memory is involved; all there is lives in memory, so nothing is lost.
    unsafe { libc::reboot(how) };
}
