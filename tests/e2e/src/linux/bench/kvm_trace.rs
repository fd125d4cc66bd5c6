//! When a guest's kernel begins and when its PID 1 begins, from KVM's own trace points
//! (`Documentation/trace/ftrace.rst`, `arch/x86/kvm/trace.h`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::test::{Failure, wrong};

/// Where the host's kernel has its instances of tracing.
const TRACING: &str = "/sys/kernel/tracing/instances";
/// Exits at addresses where a kernel is linked to begin, before it has its own page tables. The first of these exits is
/// at its first instruction: that page has not been executed before.
const FIRST: (&str, &str) = (
    "kvm_exit",
    "guest_rip >= 0x1000000 && guest_rip < 0x8000000",
);
/// What the workload `mark` of the guest's PID 1 writes.
const MARK: (&str, &str) = ("kvm_pio", "rw == 1 && port == 0x80 && val == 0x5a");
/// Pause before the next look when there was nothing to read.
const PAUSE: Duration = Duration::from_millis(5);

/// A tracing instance of our own, which is removed when this is dropped.
pub struct KvmTrace {
    folder: PathBuf,
    pipe: File,
    /// What has been read behind the last whole line.
    rest: String,
}

impl KvmTrace {
    /// Begins to follow all guests of this host.
    ///
    /// # Errors
    /// There is no tracing, or this process may not use it.
    pub fn start() -> io::Result<Self> {
        let folder = PathBuf::from(format!("{TRACING}/vmprobe-bench-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let set_up = || {
            fs::write(folder.join("trace_clock"), "mono")?;
            for (event, filter) in [FIRST, MARK] {
                let event = folder.join("events/kvm").join(event);
                fs::write(event.join("filter"), filter)?;
                fs::write(event.join("enable"), "1")?;
            }
            OpenOptions::new()
                .read(true)
                .custom_flags(OFlags::NONBLOCK.bits() as i32)
                .open(folder.join("trace_pipe"))
        };
        match set_up() {
            Ok(pipe) => Ok(Self {
                folder,
                pipe,
                rest: String::new(),
            }),
            Err(error) => {
                let _there_is_an_error_already = fs::remove_dir(&folder);
                Err(error)
            }
        }
    }

    /// Waits until a guest's PID 1 makes its mark, and returns the time since its kernel's first instruction.
    ///
    /// # Errors
    /// If `is_alive` says no before, or the trace is none.
    pub fn boot(&mut self, mut is_alive: impl FnMut() -> bool) -> Result<Duration, Failure> {
        let mut first = None;
        loop {
            let Some(line) = self.line()? else {
                if !is_alive() {
                    return Err(wrong!("the guest has ended before its PID 1 made its mark"));
                }
                thread::sleep(PAUSE);
                continue;
            };
            let Some((at, event)) = parse(&line) else {
                continue;
            };
            match (event, first) {
                (Event::Exit, None) => first = Some(at),
                (Event::Mark, Some(first)) => return Ok(at.saturating_sub(first)),
                (Event::Mark, None) => return Err(wrong!("a mark of no kernel: {line}")),
                (Event::Exit, Some(_)) => {}
            }
        }
    }

    /// Discards what has been traced and not been read.
    ///
    /// # Errors
    /// The trace is none.
    pub fn clear(&mut self) -> Result<(), Failure> {
        while self.line()?.is_some() {}
        Ok(())
    }

    fn line(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if let Some((line, rest)) = self.rest.split_once('\n') {
                let (line, rest) = (line.to_owned(), rest.to_owned());
                self.rest = rest;
                return Ok(Some(line));
            }
            let mut bytes = [0; 4096];
            match self.pipe.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(len) => self.rest += &String::from_utf8_lossy(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(Failure::io("read the trace")(error)),
            }
        }
    }
}

impl Drop for KvmTrace {
    fn drop(&mut self) {
        for (event, _) in [FIRST, MARK] {
            let event = self.folder.join("events/kvm").join(event);
            let _it_goes_with_its_folder = fs::write(event.join("enable"), "0");
        }
        if let Ok(nothing) = File::open("/dev/null") {
            self.pipe = nothing;
        }
        if let Err(error) = fs::remove_dir(&self.folder) {
            crate::note(&format!("{} stays: {error}", self.folder.display()));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Exit,
    Mark,
}

/// Returns when a line's event was, since the host's start, and which event it is. A line is `TASK-PID [CPU] FLAGS
/// SECONDS: EVENT: ...`.
fn parse(line: &str) -> Option<(Duration, Event)> {
    let of = |name, event| Some((line.split_once(&format!(": {name}: "))?.0, event));
    let (before, event) = of(FIRST.0, Event::Exit).or_else(|| of(MARK.0, Event::Mark))?;
    let (seconds, micros) = before.rsplit(' ').next()?.split_once('.')?;
    let at =
        Duration::from_secs(seconds.parse().ok()?) + Duration::from_micros(micros.parse().ok()?);
    Some((at, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_times() {
        let line = "       vcpu0-123     [001] d..2.  1012.345678: kvm_exit: vcpu 0 reason npf rip 0x10001d0 info1 0x1";
        let at = Duration::from_micros(1_012_345_678);
        assert_eq!(parse(line), Some((at, Event::Exit)));
        let line = "  <...>-7 [000] .....     3.000001: kvm_pio: pio_write at 0x80 size 1 count 1 val 0x5a ";
        assert_eq!(
            parse(line),
            Some((Duration::from_micros(3_000_001), Event::Mark))
        );
        assert_eq!(parse("CPU:1 [LOST 3 EVENTS]"), None);
        assert_eq!(parse("a [000] ..... x: kvm_exit: vcpu 0"), None);
    }
}
