//! Events of a guest, copied to a file as lines.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::{Header, Writer};

use crate::failure::Failure;
use crate::tracing::{EventNames, TraceLines, deliver};

/// Copies events to a file as lines.
pub struct EventCopy {
    names: EventNames,
    lines: TraceLines<Box<dyn Write + Send>>,
    file: PathBuf,
}

impl EventCopy {
    /// Makes a copier. `probes` are those that are known already.
    pub fn new(mut names: EventNames, probes: &[Probe], sink: EventFile) -> Result<Self, Failure> {
        let EventFile { name: file, to } = sink;
        let failed = |cause| Failure::EventFile {
            file: file.clone(),
            cause,
        };
        let mut lines = TraceLines::new(to, names.guest(), Header::None).map_err(failed)?;
        lines.begin(probes).map_err(failed)?;
        names.learn(probes);
        Ok(Self { names, lines, file })
    }

    pub async fn write(&mut self, lost: u64, events: &[Event]) -> Result<(), Failure> {
        let new = self.names.prepare(events).await?;
        let written = deliver(&mut self.lines, &new, lost, events);
        written.map_err(|cause| self.failed(cause))
    }

    pub fn finish(&mut self) -> Result<(), Failure> {
        let finished = self.lines.finish();
        finished.map_err(|cause| self.failed(cause))
    }

    fn failed(&self, cause: io::Error) -> Failure {
        Failure::EventFile {
            file: self.file.clone(),
            cause,
        }
    }
}

/// Where event lines go.
pub struct EventFile {
    name: PathBuf,
    to: Box<dyn Write + Send>,
}

impl EventFile {
    pub fn open(file: Option<&Path>) -> Result<Self, Failure> {
        let Some(file) = file else {
            return Ok(Self {
                name: "standard error".into(),
                to: Box::new(BufWriter::new(io::stderr())),
            });
        };
        let name = file.to_owned();
        match File::create(file) {
            Ok(created) => Ok(Self {
                name,
                to: Box::new(BufWriter::new(created)),
            }),
            Err(cause) => Err(Failure::EventFile { file: name, cause }),
        }
    }
}
