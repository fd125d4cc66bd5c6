//! What the kernel's log has to complain about.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

/// What a line of trouble has in it: oopses, warnings, lockups, stalls, lists and locks gone wrong.
const TROUBLE: &[&str] = &[
    "BUG",
    "Oops",
    "WARNING",
    "Call Trace",
    "general protection",
    "lockup",
    "stall",
    "blocked for more than",
    "corrupt",
    "unable to handle",
    "invalid opcode",
    "Kernel panic",
    "Unexpected int3",
];
/// What a line has that only tells of a weakness of the CPU.
const HARMLESS: &str = "hw-vuln";
/// At most so many lines are told.
const TOLD: usize = 20;

/// The lines of the kernel's log since the boot that tell of trouble, without their time.
pub fn complaints() -> io::Result<Vec<String>> {
    let mut log = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg")?;
    let mut found = Vec::new();
    let mut record = [0; 8192];
    loop {
        // One record each: Documentation/ABI/testing/dev-kmsg.
        match log.read(&mut record) {
            Ok(length) => found.extend(trouble(&String::from_utf8_lossy(&record[..length]))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The record was overwritten; the next read gives the oldest that is left.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) => return Err(error),
        }
        if found.len() >= TOLD {
            break;
        }
    }
    Ok(found)
}

/// The text of a record, if it tells of trouble.
fn trouble(record: &str) -> Option<String> {
    let text = record.split_once(';')?.1.lines().next()?;
    let bad = TROUBLE.iter().any(|word| text.contains(word));
    (bad && !text.contains(HARMLESS)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_of_trouble_are_told_and_without_their_head() {
        let bad = "4,100,5000,-;WARNING: CPU: 0 PID: 1 at x.c:1\n SUBSYSTEM=x\n";
        assert_eq!(
            trouble(bad).as_deref(),
            Some("WARNING: CPU: 0 PID: 1 at x.c:1")
        );
        assert_eq!(trouble("6,1,0,-;Linux version 6.1\n"), None);
        assert_eq!(trouble("BUG"), None);
    }
}
