//! Holding one thread of another process, as a debugger does.

use std::fs;
use std::io;
use std::ptr;

use crate::test::{Failure, wrong};

/// A thread that stands still until this is dropped, by the thread that stopped it.
#[derive(Debug)]
pub struct HeldThread {
    id: libc::pid_t,
}

/// How often to try to find the thread, and to find it asleep.
const TRIES: u32 = 1000;

impl HeldThread {
    /// Stops the thread of this name where it sleeps and waits to be woken, so that it holds no lock that other threads
    /// wait for.
    ///
    /// # Errors
    /// If there is no such thread, it can't be stopped, or it never sleeps.
    pub fn asleep(process: u32, name: &str) -> Result<Self, Failure> {
        let id = thread(process, name)?;
        for _ in 0..TRIES {
            let held = Self::stop(id)?;
            if held.waits()? {
                return Ok(held);
            }
            drop(held);
            std::thread::yield_now();
        }
        Err(wrong!("the thread {name} never sleeps"))
    }

    fn stop(id: libc::pid_t) -> Result<Self, Failure> {
        request(libc::PTRACE_SEIZE, id).map_err(Failure::io("trace a thread of the server"))?;
        let held = Self { id };
        request(libc::PTRACE_INTERRUPT, id).map_err(Failure::io("stop a thread of the server"))?;
        let mut status = 0;
        // SAFETY: `status` lives for the call.
        let waited = unsafe { libc::waitpid(id, &mut status, libc::__WALL) };
        if waited != id {
            let error = io::Error::last_os_error();
            return Err(Failure::Io("wait for a thread of the server".into(), error));
        }
        Ok(held)
    }

    /// Returns true if it was stopped inside the system call `futex`, or on the way back into it: `/proc/PID/syscall`
    /// has the number first.
    fn waits(&self) -> Result<bool, Failure> {
        let path = format!("/proc/{}/syscall", self.id);
        let text = fs::read_to_string(&path).map_err(Failure::io(format!("read {path}")))?;
        let number = text.split_whitespace().next().unwrap_or_default();
        let calls = [libc::SYS_futex, libc::SYS_restart_syscall];
        Ok(calls.iter().any(|call| call.to_string() == number))
    }
}

impl Drop for HeldThread {
    fn drop(&mut self) {
        // If that fails, the thread is gone.
        let _ = request(libc::PTRACE_DETACH, self.id);
    }
}

fn request(request: libc::c_uint, thread: libc::pid_t) -> io::Result<()> {
    let none = ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests neither read nor write memory of this process.
    match unsafe { libc::ptrace(request, thread, none, none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the number of the thread of this name.
fn thread(process: u32, name: &str) -> Result<libc::pid_t, Failure> {
    for _ in 0..TRIES {
        if let Some(id) = listed(process, name)? {
            return Ok(id);
        }
    }
    Err(wrong!("the server has no thread {name}"))
}

/// As `thread`, by one reading of the list of threads. If a thread ends during that, others may be missing in the list
/// (fs/proc/base.c, `next_tid`).
fn listed(process: u32, name: &str) -> Result<Option<libc::pid_t>, Failure> {
    let path = format!("/proc/{process}/task");
    let entries = fs::read_dir(&path).map_err(Failure::io(format!("read {path}")))?;
    let mut found = entries.flatten().filter(|entry| {
        let own = fs::read_to_string(entry.path().join("comm"));
        own.is_ok_and(|own| own.trim_end() == name)
    });
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(found.next().and_then(number))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::thread::{self, Builder};

    use super::thread as find;

    #[test]
    fn a_thread_is_found_by_its_name_also_while_older_ones_end() {
        let own = std::process::id();
        let mut missed = 0;
        for _ in 0..100 {
            let gate = Mutex::new(());
            let (done, waits) = mpsc::channel::<()>();
            let (started, running) = mpsc::channel();
            thread::scope(|scope| {
                let closed = gate.lock().unwrap();
                for _ in 0..50 {
                    scope.spawn(|| drop(gate.lock().unwrap()));
                }
                let named = Builder::new().name("a-name-to-find".into());
                let named = named.spawn_scoped(scope, move || {
                    started.send(()).unwrap();
                    let _ = waits.recv();
                });
                running.recv().unwrap();
                drop(closed);
                missed += (0..20)
                    .filter(|_| find(own, "a-name-to-find").is_err())
                    .count();
                drop(done);
                named.unwrap();
            });
        }
        assert_eq!(missed, 0);
        assert!(find(own, "no-such-thread").is_err());
    }
}
