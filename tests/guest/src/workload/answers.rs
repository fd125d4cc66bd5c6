//! The results of system calls, as a process sees them.

use std::fs::File;
use std::io::{self, Read};

use serde_json::{Value, json};

use super::module;

/// A file that is always there.
const FILE: &str = "/proc/version";
/// Bytes that are asked for.
const BYTES: usize = 16;
/// What the mask for new files is set to.
const MASK: libc::mode_t = 0o22;

/// Makes the calls; see [`crate::plan::Workload::Answers`].
pub fn run() -> io::Result<Value> {
    // SAFETY: the call has no conditions.
    let uid = unsafe { libc::getuid() };
    // SAFETY: as above.
    let parent = unsafe { libc::getppid() };
    // The second call finds the mask that the first one has set.
    let _before = set_mask();
    let mask = set_mask();
    let (read, open) = match File::open(FILE) {
        Ok(mut file) => (Some(file.read(&mut [0; BYTES])?), None),
        Err(error) => (None, error.raw_os_error()),
    };
    let device = File::open(module::DEVICE).err();
    Ok(json!({
        "getuid": uid,
        "getppid": parent,
        "umask": mask,
        "read": read,
        "open_error": open,
        "device_error": device.and_then(|error| error.raw_os_error()),
    }))
}

/// Sets the mask for new files. Returns the mask before.
fn set_mask() -> libc::mode_t {
    // SAFETY: the call has no conditions.
    unsafe { libc::umask(MASK) }
}
