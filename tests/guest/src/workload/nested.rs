//! Recursion in the kernel: an epoll instance that waits for another is asked by asking that one.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use serde_json::{Value, json};

use super::sys::check;

/// Instances in the chain; the kernel allows one more (`EP_MAX_NESTS` of fs/eventpoll.c).
const DEPTH: usize = 4;

/// Makes a chain of instances, whose last waits for a pipe that has a byte, and polls the first.
/// `__ep_eventpoll_poll` is entered once for each instance of the chain at each poll.
pub fn run(count: u64) -> io::Result<Value> {
    let (reader, writer) = io::pipe()?;
    let mut chain = Vec::new();
    let mut waits_for = reader.as_raw_fd();
    for _ in 0..DEPTH {
        let instance = instance(waits_for)?;
        waits_for = instance.as_raw_fd();
        chain.push(instance);
    }
    io::Write::write_all(&mut &writer, &[1])?;
    let mut entry = libc::pollfd {
        fd: waits_for,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut ready = 0;
    for _ in 0..count {
        // SAFETY: one entry, which lives for the call.
        ready += check(unsafe { libc::poll(&mut entry, 1, 0) })?;
    }
    Ok(json!({ "polls": count, "depth": DEPTH, "ready": ready }))
}

fn instance(waits_for: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the call above made this descriptor, and nothing else owns it.
    let instance = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    // SAFETY: the event lives for the call.
    check(unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, waits_for, &mut event) })?;
    Ok(instance)
}
