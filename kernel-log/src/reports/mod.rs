//! Finding reports among the lines of a console.

mod open;

use std::collections::VecDeque;
use std::time::Duration;

use crate::bound::start_of;
use crate::head::{Head, head};
use crate::line::{Caller, Line};
use crate::lines::MAX_LINE;
use crate::report::Report;
use open::{Open, Part, is_rule};

/// Callers whose lines are kept apart.
const MAX_CALLERS: usize = 16;

/// Lines between the one that announces a report and the one that says its kind: the message of a `WARN()`.
const MAX_LEAD: usize = 16;

/// A report is printed without a pause. A report without a new line for this long has lost its end.
const PAUSE: Duration = Duration::from_secs(5);

/// Reports that are remembered, to know those that are shown a second time.
const REMEMBERED: usize = 64;

/// Finds the reports of a kernel among the lines of its console.
///
/// # Which lines count
///
/// A program may print on the same console, and what it prints may look like a report. So once a line has
/// had the time of the kernel's log, `[    1.234567]`, only such lines count. Where the kernel prints no times
/// (`printk.time=0`), all lines do. In both cases the first line of a report has to begin like one of the
/// kernel's: `Oops:` must have an error code and a number behind it, for example. A guest that wants to be taken
/// for one with a fault still can do that, by `/dev/kmsg`.
///
/// A program that shows the log, as `dmesg` does, goes back in time. A report that comes so, with the time and the
/// title of an earlier one, is left out.
///
/// # Where a report ends
///
/// Most have an end mark. The others end with their stack, or with the first line that isn't like their own. A
/// report also ends when another one begins, when it has [`MAX_REPORT_LINES`](crate::MAX_REPORT_LINES), when nothing
/// of it has come for 5 seconds by the kernel's clock, and when a kernel boots. Those between two rules, such as
/// KASAN's, go on behind a warning that comes in the middle of them.
///
/// With `CONFIG_PRINTK_CALLER` the lines of several CPUs are told apart. Without it, a line that another CPU prints in
/// the middle of a report becomes part of the report.
#[derive(Debug, Default)]
pub struct Reports {
    /// True if the kernel prints times.
    stamped: bool,
    tracks: Vec<Track>,
    done: VecDeque<Report>,
    told: VecDeque<(Duration, String)>,
    /// The latest time so far.
    latest: Duration,
    /// How many lines there were so far, to know which track was used last.
    lines: u64,
}

/// What one caller prints.
#[derive(Debug)]
struct Track {
    caller: Option<Caller>,
    open: Option<Open>,
    /// A report that the open one is within.
    outer: Option<Open>,
    lead: Option<Lead>,
    used: u64,
}

/// Lines that announce a report.
#[derive(Debug)]
struct Lead {
    lines: Vec<String>,
    at: Option<Duration>,
    /// True if it is a line of `=`.
    ruled: bool,
}

impl Reports {
    /// Begins without any lines.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next line in, as [`Lines`](crate::Lines) gives it. Returns a report that is whole now.
    pub fn line(&mut self, line: &str) -> Option<Report> {
        let line = Line::parse(line);
        self.stamped |= line.at.is_some();
        if line.at.is_some() || !self.stamped {
            self.lines += 1;
            self.take(&line);
        }
        self.latest = self.latest.max(line.at.unwrap_or_default());
        self.done.pop_front()
    }

    /// Returns a report that the end of the console leaves open. There can be several: call it until it returns none.
    pub fn finish(&mut self) -> Option<Report> {
        self.close_all();
        self.done.pop_front()
    }

    fn take(&mut self, line: &Line<'_>) {
        if line.text.starts_with("Linux version ") {
            self.close_all();
        }
        if let Some(now) = line.at {
            self.close_silent(now);
        }
        let index = self.track(line);
        self.tracks[index].used = self.lines;
        // Behind the end of one report the line may be part of the one that is around it.
        loop {
            let track = &mut self.tracks[index];
            let ruled = track.lead.as_ref().is_some_and(|lead| lead.ruled);
            let head = head(line.text, ruled);
            let Some(open) = &mut track.open else {
                return self.begin(index, line, head);
            };
            match open.part(line.text, head) {
                Part::Inside => {
                    open.take(line.text, line.at, head);
                    // A report may begin within this one.
                    return track.announce(line);
                }
                Part::Last => {
                    open.take(line.text, line.at, head);
                    track.lead = None;
                    return self.close(index, None);
                }
                Part::Behind => match head {
                    Some(head) if track.outer.is_none() && open.may_surround(head) => {
                        track.outer = track.open.take();
                    }
                    _ => self.close(index, head),
                },
            }
        }
    }

    /// Begins a report, if the line is a head, where none is open.
    fn begin(&mut self, index: usize, line: &Line<'_>, head: Option<Head>) {
        let track = &mut self.tracks[index];
        let Some(head) = head else {
            return track.announce(line);
        };
        let lead = track.lead.take();
        let at = lead.as_ref().map_or(line.at, |lead| lead.at);
        let before = lead.map(|lead| lead.lines).unwrap_or_default();
        let mut open = Open::new(head, line.text, at, before);
        open.last = line.at;
        open.late = line.at.is_some_and(|at| at < self.latest);
        track.open = Some(open);
        if head.alone {
            self.close(index, None);
        }
    }

    /// Closes the open report of a track, possibly because the next one begins. The report around it goes on, unless
    /// the kernel panics.
    fn close(&mut self, index: usize, next: Option<Head>) {
        let track = &mut self.tracks[index];
        let open = track.open.take();
        track.open = track.outer.take();
        self.tell(open, next);
    }

    /// Returns the track that a line belongs to.
    fn track(&mut self, line: &Line<'_>) -> usize {
        let own = self
            .tracks
            .iter()
            .position(|track| track.caller == line.caller);
        let busy = own.is_some_and(|own| self.tracks[own].open.is_some());
        if let (Some(caller), false) = (line.caller, busy) {
            for (index, track) in self.tracks.iter_mut().enumerate() {
                if track
                    .open
                    .as_mut()
                    .is_some_and(|open| open.adopts(caller, line.text))
                {
                    return index;
                }
            }
        }
        own.unwrap_or_else(|| self.add_track(line.caller))
    }

    fn add_track(&mut self, caller: Option<Caller>) -> usize {
        let track = Track {
            caller,
            open: None,
            outer: None,
            lead: None,
            used: self.lines,
        };
        if self.tracks.len() < MAX_CALLERS {
            self.tracks.push(track);
            return self.tracks.len() - 1;
        }
        // Tracks without an open report go first, then those that have been silent for longest.
        let silent = self.tracks.iter().enumerate();
        let silent = silent.min_by_key(|(_, track)| (track.open.is_some(), track.used));
        let index = silent.map_or(0, |(index, _)| index);
        let old = std::mem::replace(&mut self.tracks[index], track);
        self.tell(old.open, None);
        self.tell(old.outer, None);
        index
    }

    fn close_silent(&mut self, now: Duration) {
        for index in 0..self.tracks.len() {
            let track = &self.tracks[index];
            let last = track.open.as_ref().and_then(|open| open.last);
            if last.is_some_and(|last| now.saturating_sub(last) > PAUSE) {
                self.close(index, None);
                self.close(index, None);
            }
        }
    }

    fn close_all(&mut self) {
        for track in std::mem::take(&mut self.tracks) {
            self.tell(track.open, None);
            self.tell(track.outer, None);
        }
    }

    fn tell(&mut self, open: Option<Open>, next: Option<Head>) {
        let Some(open) = open else {
            return;
        };
        let late = open.late;
        let report = open.close(next);
        if let Some(at) = report.at {
            let told = (at, report.title.clone());
            if late && self.told.contains(&told) {
                return;
            }
            if self.told.len() == REMEMBERED {
                self.told.pop_front();
            }
            self.told.push_back(told);
        }
        self.done.push_back(report);
    }
}

impl Track {
    /// Takes in a line that may announce a report: a line of `=`, or `[ cut here ]` (`include/asm-generic/bug.h`).
    fn announce(&mut self, line: &Line<'_>) {
        let ruled = is_rule(line.text);
        if ruled || line.text.starts_with("------------[ cut here ]") {
            self.lead = Some(Lead {
                lines: Vec::new(),
                at: line.at,
                ruled,
            });
        }
        if let Some(lead) = &mut self.lead {
            if lead.lines.len() == MAX_LEAD {
                self.lead = None;
            } else {
                lead.lines.push(start_of(line.text, MAX_LINE).to_owned());
            }
        }
    }
}
