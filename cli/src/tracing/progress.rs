//! How far a recording is, on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line is renewed.
pub const PERIOD: Duration = Duration::from_millis(200);

/// A line on standard error that is written over again and again; none where standard error is no
/// terminal.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    since: Instant,
}

impl Progress {
    /// Makes the line. `wanted` is false for a command that shows its events, too.
    pub fn new(wanted: bool) -> Self {
        Self {
            shown: wanted && io::stderr().is_terminal(),
            since: Instant::now(),
        }
    }

    pub fn is_shown(&self) -> bool {
        self.shown
    }

    pub fn show(&self, events: u64, lost: u64) {
        if self.shown {
            self.write(&format!(
                "\r{}\x1b[K",
                line(events, lost, self.since.elapsed())
            ));
        }
    }

    /// Takes the line away.
    pub fn clear(&self) {
        if self.shown {
            self.write("\r\x1b[K");
        }
    }

    fn write(&self, text: &str) {
        let mut out = io::stderr().lock();
        // If the line can't be written, nothing is lost.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

fn line(events: u64, lost: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    format!("{events} events, {lost} lost, {seconds:.1} s; Ctrl-C ends it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_counts_and_time() {
        let text = line(12, 3, Duration::from_millis(2340));
        assert_eq!(text, "12 events, 3 lost, 2.3 s; Ctrl-C ends it");
    }
}
