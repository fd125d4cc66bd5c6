//! Stacks that occurred, with how often.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use inferno::flamegraph;
use vmprobe_proto::v1::{Event, Probe};

use crate::names::Names;
use crate::text::printable;
use crate::writer::{Guest, Writer};

/// Different stacks that are told apart. Events with others are counted together.
const STACKS_MAX: usize = 1 << 18;

/// The name of the outermost frame of a stack whose callers are missing.
const CUT: &str = "[...]";

/// The name of the frame for stacks that aren't told apart.
const OTHERS: &str = "[other stacks]";

/// Counts the stacks of events.
///
/// A stack is `comm;outermost;...;innermost`, each frame the function's name without an offset, or its address where
/// nothing covers it. `?` stands for an unknown task, `[...]` for callers that are missing. At most 262144 different
/// stacks are told apart; events with others count as `[other stacks]`. Events without a stack don't count.
pub struct Stacks {
    names: Names,
    counts: BTreeMap<String, u64>,
    lost: u64,
    /// The text of the current stack. The field keeps its memory from event to event.
    folded: String,
}

impl Stacks {
    /// Begins without stacks.
    #[must_use]
    pub fn new(guest: &Guest) -> Self {
        Self {
            names: Names::new(guest),
            counts: BTreeMap::new(),
            lost: 0,
            folded: String::new(),
        }
    }

    /// Counts the event's stack.
    pub fn add(&mut self, event: &Event) {
        if event.stack.is_empty() {
            return;
        }
        let mut folded = std::mem::take(&mut self.folded);
        folded.clear();
        match &event.context {
            Some(context) if !context.comm.is_empty() => {
                push_frame(&mut folded, &printable(&context.comm));
            }
            _ => push_frame(&mut folded, "?"),
        }
        if event.stack_incomplete {
            folded.push(';');
            folded.push_str(CUT);
        }
        for address in event.stack.iter().rev() {
            folded.push(';');
            push_frame(&mut folded, &self.names.function(*address));
        }
        if let Some(count) = self.counts.get_mut(&folded) {
            *count = count.saturating_add(1);
        } else if self.counts.len() < STACKS_MAX {
            self.counts.insert(folded.clone(), 1);
        } else {
            let count = self.counts.entry(OTHERS.into()).or_default();
            *count = count.saturating_add(1);
        }
        self.folded = folded;
    }

    /// Returns the stacks in the order of their text, each a line `comm;outermost;innermost 12`.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let lines = self.counts.iter();
        lines.map(|(folded, count)| format!("{folded} {count}"))
    }

    /// Writes a flame graph of the stacks as SVG.
    ///
    /// # Errors
    /// `out` can't be written. [`io::ErrorKind::InvalidData`]: no event had a stack.
    pub fn flame_graph(&self, title: &str, out: impl Write) -> io::Result<()> {
        if self.counts.is_empty() {
            let reason = "a flame graph needs events with a stack: register the probes with one";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let mut options = flamegraph::Options::default();
        options.title = title.to_owned();
        options.count_name = "events".into();
        options.deterministic = true;
        if self.lost > 0 {
            options.notes = format!("{} events were lost", self.lost);
        }
        let lines: Vec<String> = self.lines().collect();
        let lines = lines.iter().map(String::as_str);
        flamegraph::from_lines(&mut options, lines, out).map_err(io::Error::other)
    }
}

/// Appends a frame; `;` would end it.
fn push_frame(folded: &mut String, frame: &str) {
    if frame.contains(';') {
        folded.push_str(&frame.replace(';', ":"));
    } else {
        folded.push_str(frame);
    }
}

/// Writes folded stacks, the input of flame graph tools. See [`Stacks`].
pub struct Folded<W> {
    out: W,
    stacks: Stacks,
}

impl<W: Write> Folded<W> {
    /// Makes a writer to `out`. Everything is written at the end.
    pub fn new(out: W, guest: &Guest) -> Self {
        Self {
            out,
            stacks: Stacks::new(guest),
        }
    }
}

impl<W: Write> Writer for Folded<W> {
    fn begin(&mut self, _: &[Probe]) -> io::Result<()> {
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.stacks.add(event);
        Ok(())
    }

    /// Does nothing: the format has no place for lost events.
    fn lost(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        for line in self.stacks.lines() {
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }
}

/// Writes a flame graph as SVG. See [`Stacks`]. A flame graph of events without any stack is an error.
pub struct FlameGraph<W> {
    out: W,
    stacks: Stacks,
    title: String,
}

impl<W: Write> FlameGraph<W> {
    /// Makes a writer to `out`. Everything is written at the end.
    pub fn new(out: W, guest: &Guest) -> Self {
        Self {
            out,
            stacks: Stacks::new(guest),
            title: String::new(),
        }
    }
}

impl<W: Write> Writer for FlameGraph<W> {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        for probe in probes {
            // A title has room for some names.
            if self.title.len() < 60 {
                let separator = if self.title.is_empty() { "" } else { ", " };
                let (_, name) = crate::names::event_name(probe);
                // Writing to a string succeeds.
                let _ = write!(self.title, "{separator}{name}");
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.stacks.add(event);
        Ok(())
    }

    fn lost(&mut self, count: u64) -> io::Result<()> {
        self.stacks.lost = self.stacks.lost.saturating_add(count);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stacks.flame_graph(&self.title, &mut self.out)?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn write(writer: &mut dyn Writer) -> io::Result<()> {
        writer.begin(&samples::probes())?;
        for event in [
            samples::with_stack(),
            samples::with_stack(),
            samples::open(),
        ] {
            writer.event(&event)?;
        }
        let mut other = samples::with_stack();
        other.context = None;
        other.stack.remove(0);
        other.stack_incomplete = true;
        writer.event(&other)?;
        writer.lost(3)?;
        writer.finish()
    }

    #[test]
    fn stacks_are_folded_from_the_outermost_frame() {
        let mut out = Vec::new();
        write(&mut Folded::new(&mut out, &samples::guest())).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "?;[...];0x00401000;ksys_read 1\ncat;0x00401000;ksys_read;do_sys_openat2 2\n"
        );
    }

    #[test]
    fn a_flame_graph_has_the_functions_and_their_counts() {
        let mut out = Vec::new();
        write(&mut FlameGraph::new(&mut out, &samples::guest())).unwrap();
        let svg = String::from_utf8(out).unwrap();
        assert!(svg.starts_with("<?xml"), "{svg}");
        assert!(
            svg.contains("<title>do_sys_openat2 (2 events, 66.67%)</title>"),
            "{svg}"
        );
        assert!(svg.contains(">open, done, read</text>"), "{svg}");
        assert!(svg.contains("3 events were lost"), "{svg}");
    }

    #[test]
    fn a_flame_graph_without_stacks_says_what_is_missing() {
        let mut out = Vec::new();
        let mut writer = FlameGraph::new(&mut out, &samples::guest());
        writer.event(&samples::open()).unwrap();
        let error = writer.finish().unwrap_err();
        assert!(error.to_string().contains("events with a stack"), "{error}");
    }

    #[test]
    fn a_task_name_cannot_make_up_frames() {
        let mut stacks = Stacks::new(&samples::guest());
        let mut event = samples::with_stack();
        event.stack.truncate(1);
        if let Some(context) = &mut event.context {
            context.comm = b"a;b\nc 7".into();
        }
        stacks.add(&event);
        let lines: Vec<String> = stacks.lines().collect();
        assert_eq!(lines, ["a:b\\x0ac 7;do_sys_openat2 1"]);
    }

    #[test]
    fn a_guest_that_makes_up_stacks_fills_no_memory() {
        let mut stacks = Stacks::new(&samples::guest());
        for address in 0..STACKS_MAX as u64 + 10 {
            stacks.add(&Event {
                stack: vec![0x1000 + address],
                ..Event::default()
            });
        }
        assert_eq!(stacks.counts.len(), STACKS_MAX + 1);
        assert_eq!(stacks.counts[OTHERS], 10);
    }
}
