//! Events as JSON lines.

use std::io::{self, Write};

use serde::Serialize;
use vmprobe_proto::v1::{Event, Probe};

use crate::record::Recorder;
use crate::writer::{Guest, Writer};

/// Writes one JSON value a line, in the form of `docs/trace-event.schema.json`: a
/// [`Record`](crate::Record), or `{"lost":5}` where events were lost.
pub struct JsonLines<W> {
    out: W,
    recorder: Recorder,
}

impl<W: Write> JsonLines<W> {
    /// Makes a writer to `out`. Each line is written at once.
    pub fn new(out: W, guest: &Guest) -> Self {
        Self {
            out,
            recorder: Recorder::new(guest),
        }
    }

    fn write(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }
}

impl<W: Write> Writer for JsonLines<W> {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        self.recorder.learn(probes);
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let record = self.recorder.record(event);
        self.write(&record)
    }

    fn lost(&mut self, count: u64) -> io::Result<()> {
        self.write(&Lost { lost: count })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[derive(Serialize)]
struct Lost {
    lost: u64,
}

#[cfg(test)]
mod tests;
