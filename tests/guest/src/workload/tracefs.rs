//! The guest's own tracing: files of tracefs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::machine;

const ROOT: &str = "/sys/kernel/tracing";
/// KiB of trace buffer for each CPU: enough for all that a workload traces.
const BUFFER_KIB: u64 = 4096;

/// Mounts tracefs unless it is there, and makes its buffer large and empty.
pub fn ready() -> io::Result<()> {
    if !Path::new(ROOT).join("trace").exists() {
        machine::mount(c"tracefs", c"/sys/kernel/tracing")?;
    }
    write("tracing_on", "1")?;
    write("buffer_size_kb", &BUFFER_KIB.to_string())?;
    clear()
}

/// Writes to a file, as `echo TEXT > FILE` does.
pub fn write(file: &str, text: &str) -> io::Result<()> {
    change(file, text, File::options().write(true).truncate(true))
}

/// Writes to a file, as `echo TEXT >> FILE` does.
pub fn append(file: &str, text: &str) -> io::Result<()> {
    change(file, text, File::options().append(true))
}

fn change(file: &str, text: &str, options: &fs::OpenOptions) -> io::Result<()> {
    let written = options
        .open(Path::new(ROOT).join(file))
        .and_then(|mut opened| opened.write_all(format!("{text}\n").as_bytes()));
    written.map_err(|error| {
        io::Error::new(error.kind(), format!("{text:?} to {ROOT}/{file}: {error}"))
    })
}

/// The path of a file.
pub fn path(file: &str) -> PathBuf {
    Path::new(ROOT).join(file)
}

/// The content of a file.
pub fn read(file: &str) -> io::Result<String> {
    fs::read_to_string(Path::new(ROOT).join(file))
}

/// Empties the trace buffer.
pub fn clear() -> io::Result<()> {
    write("trace", "")
}

/// Returns the lines of the trace; an error if the buffer was too small for all of them.
pub fn lines() -> io::Result<Vec<String>> {
    // Texts of the traced programs may contain any bytes.
    let trace = fs::read(path("trace"))?;
    let trace = String::from_utf8_lossy(&trace);
    let whole = trace.lines().find_map(whole_buffer);
    if whole == Some(false) || trace.contains("LOST") {
        return Err(io::Error::other("the trace buffer overflowed"));
    }
    let lines = trace.lines().filter(|line| !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

/// Returns true if `# entries-in-buffer/entries-written: 10/10   #P:1` has all that was written.
fn whole_buffer(line: &str) -> Option<bool> {
    let counts = line.strip_prefix("# entries-in-buffer/entries-written: ")?;
    let (kept, written) = counts.split_whitespace().next()?.split_once('/')?;
    Some(kept == written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_overflowed_is_told_from_one_that_did_not() {
        let line = |counts| format!("# entries-in-buffer/entries-written: {counts}   #P:4");
        assert_eq!(whole_buffer(&line("10/10")), Some(true));
        assert_eq!(whole_buffer(&line("10/11")), Some(false));
        assert_eq!(whole_buffer("# tracer: nop"), None);
    }
}
