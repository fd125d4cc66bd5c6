//! Starting processes and talking to one.

use std::io::{self, Read, Write};

use serde_json::{Value, json};

/// Starts a process that ends at once and waits for it, `count` times.
pub fn forks(count: u64) -> io::Result<Value> {
    for _ in 0..count {
        wait_for(fork(|| {})?)?;
    }
    Ok(json!({ "forks": count }))
}

/// Sends a byte to another process, which sends it back, `count` times: two context switches
/// each at least, if both are on one CPU.
pub fn pipes(count: u64) -> io::Result<Value> {
    let (mut from_us, mut to_child) = io::pipe()?;
    let (mut from_child, mut to_us) = io::pipe()?;
    let child = fork(|| {
        let mut byte = [0];
        for _ in 0..count {
            if from_us
                .read_exact(&mut byte)
                .and_then(|()| to_us.write_all(&byte))
                .is_err()
            {
                return;
            }
        }
    })?;
    let mut byte = [0];
    for n in 0..count {
        let sent = [n as u8];
        to_child.write_all(&sent)?;
        from_child.read_exact(&mut byte)?;
        if byte != sent {
            return Err(io::Error::other(
                "a pipe gave back another byte than it was given",
            ));
        }
    }
    wait_for(child)?;
    Ok(json!({ "round_trips": count }))
}

fn fork(child: impl FnOnce()) -> io::Result<libc::pid_t> {
    // SAFETY: this program has one thread here, so the child's copy of memory is consistent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            child();
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(pid),
    }
}

fn wait_for(pid: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: `status` lives for the call.
    if unsafe { libc::waitpid(pid, &mut status, 0) } != pid {
        return Err(io::Error::last_os_error());
    }
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::other("a child process failed"))
    }
}
