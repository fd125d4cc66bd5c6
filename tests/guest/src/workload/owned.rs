//! Calls whose functions in the kernel take and return structures by value.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

const FILE: &str = "/owned";
/// The first user that gets the file.
const FIRST: u32 = 1000;

/// Gives a file to `count` users, one after the other, and asks each time who owns it. Sets an option of a socket as
/// often. Reports the users, and the address of the option's value.
pub fn run(count: u64) -> io::Result<Value> {
    let count = u32::try_from(count).map_err(io::Error::other)?;
    File::create(FILE)?;
    let (socket, _other) = UnixStream::pair()?;
    let size: libc::c_int = 1 << 16;
    let mut users = Vec::new();
    for user in FIRST..FIRST + count {
        chown(FILE, Some(user), None)?;
        users.push(fs::metadata(FILE)?.uid());
        // SAFETY: the value lives for the call, and its length is told.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUF,
                (&raw const size).cast(),
                size_of_val(&size) as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    fs::remove_file(FILE)?;
    let option = (&raw const size).addr();
    Ok(json!({ "users": users, "option": format!("{option:#x}") }))
}
