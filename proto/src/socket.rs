//! The socket where a server listens, and where clients look for it, by default.

use std::env;
use std::path::PathBuf;

use rustix::process::getuid;

/// The socket's path in its folder.
const NAME: &str = "vmprobe/vmprobed.sock";

/// Returns the Unix socket of root's server, or of a user's server: in the folder of the user's session (XDG Base
/// Directory Specification, `XDG_RUNTIME_DIR`), or in a folder of the user's own among temporary files.
pub fn default_socket() -> PathBuf {
    let user = getuid();
    if user.is_root() {
        return PathBuf::from("/run").join(NAME);
    }
    let session = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match session.filter(|folder| folder.is_absolute()) {
        Some(folder) => folder.join(NAME),
        None => PathBuf::from(format!("/tmp/vmprobe-{}/vmprobed.sock", user.as_raw())),
    }
}
