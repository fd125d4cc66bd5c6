//! The kernel's files for debugging (Documentation/filesystems/debugfs.rst).

use std::fs;
use std::io;
use std::path::Path;

use crate::machine;

const ROOT: &str = "/sys/kernel/debug";
/// The kernel's kprobes, a line each.
pub const KPROBES: &str = "kprobes/list";

/// Mounts debugfs, if it isn't mounted yet.
pub fn ready() -> io::Result<()> {
    if Path::new(ROOT).join("kprobes").exists() {
        return Ok(());
    }
    machine::mount(c"debugfs", c"/sys/kernel/debug")
        .map_err(|error| io::Error::other(format!("can't mount {ROOT}: {error}")))
}

/// The content of a file.
pub fn read(file: &str) -> io::Result<String> {
    ready()?;
    fs::read_to_string(Path::new(ROOT).join(file))
}
