//! System calls that several workloads make.

use std::io;

/// Returns the error of a call whose result is negative when it fails.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Starts a process that calls `child` and ends with its result as exit status.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<libc::pid_t> {
    // SAFETY: this program has one thread here, so the child's copy of memory is consistent.
    match check(unsafe { libc::fork() })? {
        0 => {
            let status = child();
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(status.into()) }
        }
        pid => Ok(pid),
    }
}

/// Waits until a child ends or stops. Returns its status as `wait` gives it.
pub fn wait(pid: libc::pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: `status` lives for the call.
    check(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    Ok(status)
}

/// Waits until a child has ended, with exit status 0.
pub fn wait_for(pid: libc::pid_t) -> io::Result<()> {
    match wait(pid)? {
        0 => Ok(()),
        status => Err(io::Error::other(format!(
            "a child process ended with status {status:#x}"
        ))),
    }
}
