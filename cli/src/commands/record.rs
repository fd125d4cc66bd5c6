//! `vmprobe record` and `vmprobe flame`: events into a file.

use std::io;
use std::path::{Path, PathBuf};

use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::{CreateError, Format, Guest, Writer, create};

use crate::cli::{Flame, Record, TargetArgs, TracedArgs};
use crate::failure::Failure;
use crate::output::note;
use crate::tracing::{Wanted, follow};

pub async fn record(record: &Record) -> Result<(), Failure> {
    let format = Format::of(&record.output);
    let format = format.ok_or_else(|| CreateError::Ending(record.output.clone()))?;
    to_file(&record.target, &record.traced, &record.output, format).await
}

pub async fn flame(flame: &Flame) -> Result<(), Failure> {
    match Format::of(&flame.output) {
        Some(format @ (Format::FlameGraph | Format::Folded)) => {
            to_file(&flame.target, &flame.traced, &flame.output, format).await
        }
        _ => Err(Failure::NotFlame {
            file: flame.output.clone(),
        }),
    }
}

async fn to_file(
    target: &TargetArgs,
    traced: &TracedArgs,
    file: &Path,
    format: Format,
) -> Result<(), Failure> {
    let mut wanted = Wanted::read(traced)?;
    if matches!(format, Format::FlameGraph | Format::Folded) {
        wanted = wanted.with_stacks();
    }
    let make = |guest: &Guest| {
        Ok(File {
            writer: create(file, guest)?,
            is_empty: true,
        })
    };
    let failed = |cause| Failure::EventFile {
        file: PathBuf::from(file),
        cause,
    };
    let (_, totals) = follow(target, &wanted, &traced.until, true, make, failed).await?;
    totals.tell();
    note(format!("written: {}", file.display()));
    Ok(())
}

/// A file of any format.
struct File {
    writer: Box<dyn Writer + Send>,
    is_empty: bool,
}

impl Writer for File {
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()> {
        self.writer.begin(probes)
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.is_empty = false;
        self.writer.event(event)
    }

    fn lost(&mut self, count: u64) -> io::Result<()> {
        self.writer.lost(count)
    }

    fn finish(&mut self) -> io::Result<()> {
        let finished = self.writer.finish();
        finished.map_err(|error| match error.kind() {
            // A flame graph needs an event.
            io::ErrorKind::InvalidData if self.is_empty => {
                io::Error::new(error.kind(), "no event came, so there is nothing to draw")
            }
            _ => error,
        })
    }
}
