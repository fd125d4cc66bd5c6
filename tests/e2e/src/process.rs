//! A process, as /proc shows it (proc(5)).

use std::fs::{self, DirEntry};
use std::time::Duration;
use std::{io, thread};

use crate::test::{Failure, wrong};

/// Time between two looks at a process.
const AGAIN: Duration = Duration::from_millis(1);

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(pub u32);

impl Process {
    /// Its folder in /proc.
    pub fn folder(self) -> String {
        format!("/proc/{}", self.0)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// If the process has gone.
    pub fn signal(self, signal: i32) -> Result<(), Failure> {
        // SAFETY: it involves no memory.
        match unsafe { libc::kill(self.0 as libc::pid_t, signal) } {
            0 => Ok(()),
            _ => Err(Failure::io(format!("signal {}", self.folder()))(
                io::Error::last_os_error(),
            )),
        }
    }

    /// Stops it, and waits until each of its threads stands still: that is some time after the signal.
    ///
    /// # Errors
    /// If the process has gone.
    pub fn stop(self) -> Result<(), Failure> {
        self.signal(libc::SIGSTOP)?;
        let stands = |status: &str| value(status, "State").is_some_and(|it| it.starts_with('T'));
        while !self.threads()?.iter().all(|(_, status)| stands(status)) {
            thread::sleep(AGAIN);
        }
        Ok(())
    }

    /// Returns true if it exists.
    pub fn exists(self) -> bool {
        fs::exists(self.folder()).unwrap_or(false)
    }

    fn read(self, file: &str) -> Result<String, Failure> {
        let path = format!("{}/{file}", self.folder());
        fs::read_to_string(&path).map_err(Failure::io(format!("read {path}")))
    }

    /// Returns a number of its status, such as `VmRSS` (KiB) or `Threads`.
    ///
    /// # Errors
    /// If the process has gone or has no such number.
    pub fn status(self, field: &str) -> Result<u64, Failure> {
        let text = self.read("status")?;
        let number =
            value(&text, field).and_then(|value| value.split_whitespace().next()?.parse().ok());
        number.ok_or_else(|| wrong!("{} has no number {field}", self.folder()))
    }

    /// Returns how many files it has open.
    ///
    /// # Errors
    /// If the process has gone.
    pub fn open_files(self) -> Result<usize, Failure> {
        Ok(self.entries("fd")?.count())
    }

    fn entries(self, folder: &str) -> Result<impl Iterator<Item = DirEntry>, Failure> {
        let path = format!("{}/{folder}", self.folder());
        let entries = fs::read_dir(&path).map_err(Failure::io(format!("read {path}")))?;
        Ok(entries.flatten())
    }

    /// Returns the names and the statuses of its threads.
    ///
    /// # Errors
    /// If the process has gone.
    pub fn threads(self) -> Result<Vec<(String, String)>, Failure> {
        // A thread may end between the listing and the reading.
        let told = |entry: DirEntry| {
            let read = |file| fs::read_to_string(entry.path().join(file)).ok();
            Some((read("comm")?.trim().to_owned(), read("status")?))
        };
        Ok(self.entries("task")?.filter_map(told).collect())
    }

    /// Returns the CPU time of its threads except for those of vCPUs, in ticks of the clock.
    ///
    /// # Errors
    /// If the process has gone.
    pub fn work(self) -> Result<u64, Failure> {
        let read = |entry: DirEntry| fs::read_to_string(entry.path().join("stat")).ok();
        // A thread may end between the listing and the reading.
        let threads = self.entries("task")?.filter_map(read);
        Ok(threads.filter_map(|line| thread_work(&line)).sum())
    }

    /// Its words: the program and its arguments.
    pub fn words(self) -> Vec<String> {
        let words = self.read("cmdline").unwrap_or_default();
        words.split_terminator('\0').map(str::to_owned).collect()
    }

    /// The name of the VM that it runs, if it is a process of a VM.
    pub fn vm(self) -> Option<String> {
        let words = self.words();
        (words.get(1)? == "vm").then(|| words.last().cloned())?
    }

    /// Returns the processes that it has started and that still exist, in the order of their numbers.
    ///
    /// # Errors
    /// If /proc can't be read.
    pub fn started(self) -> Result<Vec<Self>, Failure> {
        let entries = fs::read_dir("/proc").map_err(Failure::io("read /proc"))?;
        let numbers = entries.flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut started: Vec<Self> = numbers.map(Self).collect();
        // A process may end between the listing and the reading.
        started.retain(|process| {
            process
                .status("PPid")
                .is_ok_and(|by| by == u64::from(self.0))
        });
        started.sort_unstable_by_key(|process| process.0);
        Ok(started)
    }
}

/// The value of a field of a status file.
pub fn value<'a>(status: &'a str, field: &str) -> Option<&'a str> {
    let of = |line: &'a str| line.strip_prefix(field)?.strip_prefix(':');
    status.lines().find_map(of).map(str::trim)
}

/// Returns the user and system time of a line of `/proc/PID/task/TID/stat`; `None` if the thread is a vCPU's.
fn thread_work(line: &str) -> Option<u64> {
    // The name is in parentheses, and may contain some itself.
    let (head, rest) = line.rsplit_once(") ")?;
    if head.split_once('(')?.1.starts_with("vcpu") {
        return None;
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(number(11)? + number(12)?)
}
