//! Complaints and new lines in the kernel's log, and lines of our own.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::Duration;

/// Words in lines of trouble: oopses, warnings, lockups, stalls, corrupt lists and locks.
const TROUBLE: &[&str] = &[
    "BUG",
    "Oops",
    "WARNING",
    "Call Trace",
    "general protection",
    "lockup",
    "LOCKUP",
    "stall",
    "blocked for more than",
    "corrupt",
    "unable to handle",
    "invalid opcode",
    "Kernel panic",
    "Unexpected int3",
];
/// Words of harmless lines. Such a line reports a weakness of the CPU by a link into the kernel's documentation, or by
/// the name of an attack that its mitigation doesn't prevent on some models (`arch/x86/kernel/cpu/bugs.c`). Or it
/// refuses a kprobe in a function, whose name may contain any words (`kernel/trace/trace_kprobe.c`).
const HARMLESS: [&str; 3] = [
    "hw-vuln",
    "RETBleed: WARNING: Spectre v2 mitigation leaves CPU",
    "trace_kprobe: Could not probe notrace function",
];
/// The kernel's log.
const PATH: &str = "/dev/kmsg";
/// The most lines that are reported.
const TOLD: usize = 20;

/// Returns the lines of the kernel's log since the boot that report trouble, without their times.
pub fn complaints() -> io::Result<Vec<String>> {
    let mut log = open()?;
    let mut found = Vec::new();
    while found.len() < TOLD {
        match record(&mut log)? {
            Some(record) => found.extend(trouble(&record)),
            None => break,
        }
    }
    Ok(found)
}

/// The new lines of the kernel's log from a moment on.
pub struct News(File);

impl News {
    /// Begins now.
    pub fn from_now_on() -> io::Result<Self> {
        let mut log = open()?;
        log.seek(SeekFrom::End(0))?;
        Ok(Self(log))
    }

    /// Returns the lines until now, without their times.
    pub fn lines(mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        while let Some(record) = record(&mut self.0)? {
            lines.extend(text(&record).map(str::to_owned));
        }
        Ok(lines)
    }
}

/// The beginning of our own lines.
const OWN: &str = "said by init: ";

/// Writes `count` lines to the log, with this time in between. Returns the times that the log has of them, in
/// microseconds.
pub fn say(count: u64, between: Duration) -> io::Result<Vec<u64>> {
    let mut log = open()?;
    log.seek(SeekFrom::End(0))?;
    for number in 0..count {
        // The file is opened again for each line: the log takes ten lines from one opening, and then none for seconds.
        let mut to = File::options().write(true).open(PATH)?;
        to.write_all(format!("{OWN}{number}\n").as_bytes())?;
        thread::sleep(between);
    }
    let mut times = Vec::new();
    while let Some(record) = record(&mut log)? {
        if text(&record).is_some_and(|text| text.starts_with(OWN)) {
            times.extend(time(&record));
        }
    }
    Ok(times)
}

fn open() -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(PATH)
}

/// Reads the next record: Documentation/ABI/testing/dev-kmsg. Returns `None` if there is none yet.
fn record(log: &mut File) -> io::Result<Option<String>> {
    let mut record = [0; 8192];
    loop {
        return match log.read(&mut record) {
            Ok(length) => Ok(Some(
                String::from_utf8_lossy(&record[..length]).into_owned(),
            )),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The record was overwritten; the next read gives the oldest that is left.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => continue,
            Err(error) => Err(error),
        };
    }
}

/// The text of a record.
fn text(record: &str) -> Option<&str> {
    record.split_once(';')?.1.lines().next()
}

/// The time of a record in microseconds: the third part of its head.
fn time(record: &str) -> Option<u64> {
    let (head, _) = record.split_once(';')?;
    head.split(',').nth(2)?.parse().ok()
}

/// Returns the text of a record if it reports trouble.
fn trouble(record: &str) -> Option<String> {
    let text = text(record)?;
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
        assert_eq!(
            (time(bad), time("BUG"), time("6,1;x")),
            (Some(5000), None, None)
        );
    }

    #[test]
    fn a_kprobe_that_the_kernel_refuses_is_no_trouble_whatever_its_function_is_called() {
        let refused =
            |name| format!("4,1,0,-;trace_kprobe: Could not probe notrace function {name}\n");
        for name in ["zap_install_uffd_wp_if_needed.isra.0", "stall", "is_stall"] {
            assert_eq!(trouble(&refused(name)), None, "{name}");
        }
        for bad in [
            "rcu: INFO: rcu_preempt self-detected stall on CPU",
            "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "watchdog: BUG: soft lockup - CPU#0 stuck for 26s!",
            "list_del corruption. next is bad",
        ] {
            assert!(trouble(&format!("4,1,0,-;{bad}\n")).is_some(), "{bad}");
        }
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
