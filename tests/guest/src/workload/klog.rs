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
/// What a line has that only tells of a weakness of the CPU: a link into the kernel's documentation, or
/// the name of an attack that its mitigation doesn't prevent on some models (arch/x86/kernel/cpu/bugs.c).
const HARMLESS: [&str; 2] = [
    "hw-vuln",
    "RETBleed: WARNING: Spectre v2 mitigation leaves CPU",
];
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
    let harmless = HARMLESS.iter().any(|part| text.contains(part));
    (bad && !harmless).then(|| text.to_owned())
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

    #[test]
    fn weaknesses_of_the_cpu_are_no_trouble() {
        let retbleed = "3,9,0,-;RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable to \
                        RETBleed attacks, data leaks possible!\n";
        let mds = "4,9,0,-;MDS CPU bug present and SMT on, data leak possible. See \
                   https://www.kernel.org/doc/html/latest/admin-guide/hw-vuln/mds.html BUG\n";
        for harmless in [retbleed, mds] {
            assert_eq!(trouble(harmless), None);
        }
        let other = "3,9,0,-;RETBleed: WARNING: something else\n";
        assert!(trouble(other).is_some());
    }
}
