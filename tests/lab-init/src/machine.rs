//! What PID 1 does to the machine: mounts, modules, the loopback interface, power.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use lab_init::Module;

/// Why the machine can't be made ready.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A file system can't be mounted.
    #[error("can't mount {0}")]
    Mount(String, #[source] io::Error),
    /// A module can't be loaded.
    #[error("can't load the kernel module {0} (is it for this kernel, and are its needs loaded?)")]
    Module(String, #[source] io::Error),
    /// The loopback interface can't be brought up.
    #[error("can't bring the loopback interface up")]
    Loopback(#[source] io::Error),
}

/// Mounts `/proc`, `/sys`, the kernel's tracing there, `/dev` and `/tmp`.
pub fn mount_all() -> Result<(), MachineError> {
    const MOUNTS: [(&CStr, &CStr); 5] = [
        (c"proc", c"/proc"),
        (c"sysfs", c"/sys"),
        (c"tracefs", c"/sys/kernel/tracing"),
        (c"devtmpfs", c"/dev"),
        (c"tmpfs", c"/tmp"),
    ];
    for (kind, target) in MOUNTS {
        let path = target.to_string_lossy();
        let mounted = fs::create_dir_all(path.as_ref()).and_then(|()| mount(kind, target));
        mounted.map_err(|e| MachineError::Mount(path.into_owned(), e))?;
    }
    Ok(())
}

fn mount(kind: &CStr, target: &CStr) -> io::Result<()> {
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
    check(result)
}

/// Loads a kernel module; one that is there already is fine.
pub fn load_module(module: &Module) -> Result<(), MachineError> {
    let load = || {
        let file = File::open(&module.path)?;
        let parameters = CString::new(module.parameters.as_str())?;
        let (fd, parameters) = (file.as_raw_fd(), parameters.as_ptr());
        // SAFETY: the descriptor is open, the parameters end in NUL and live on; flags are 0.
        let result = unsafe { libc::syscall(libc::SYS_finit_module, fd, parameters, 0) };
        match check(result as libc::c_int) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            result => result,
        }
    };
    load().map_err(|e| MachineError::Module(module.path.clone(), e))
}

/// Brings `lo` up, so that the command can serve and connect on 127.0.0.1.
pub fn loopback_up() -> Result<(), MachineError> {
    let up = || {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made this descriptor, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an all-zero ifreq is valid: a name of NULs and integers.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        // SAFETY: SIOCSIFFLAGS reads an ifreq, which lives for the call.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) })
    };
    up().map_err(MachineError::Loopback)
}

/// Powers the machine off; doesn't return. If it can't, the kernel panics when PID 1 ends, which
/// ends the machine too.
pub fn power_off() {
    // SAFETY: no memory is involved; all there is lives in memory, so nothing is lost.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
