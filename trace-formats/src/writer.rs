//! Files of events, by their formats.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vmprobe_proto::v1::{Event, Probe};

use crate::symbols::Symbols;
use crate::{FlameGraph, Folded, Ftrace, Header, JsonLines, Perfetto, TraceDat};

/// Takes the events of a recording and writes them in some format.
pub trait Writer {
    /// Tells of probes. It is called before their first events, and again for probes that come later. Events
    /// of a probe that it was never told of are written under the probe's number.
    ///
    /// # Errors
    /// The output can't be written.
    fn begin(&mut self, probes: &[Probe]) -> io::Result<()>;

    /// Writes an event. Events come in the order in which the server sent them.
    ///
    /// # Errors
    /// The output can't be written, or the format has no room for this event.
    fn event(&mut self, event: &Event) -> io::Result<()>;

    /// Notes that `count` events were lost before the next one.
    ///
    /// # Errors
    /// The output can't be written.
    fn lost(&mut self, count: u64) -> io::Result<()>;

    /// Hands on what is written so far, for programs that read the output meanwhile. It does nothing for formats that
    /// are written at their end.
    ///
    /// # Errors
    /// The output can't be written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Writes what is left, and the parts of the format that need all events. It is called once, after the last event.
    /// Without it the output is incomplete.
    ///
    /// # Errors
    /// The output can't be written.
    fn finish(&mut self) -> io::Result<()>;
}

/// What all formats have to know of the guest.
#[derive(Clone)]
pub struct Guest {
    /// The frequency of the guest's time stamp counter in hertz; 0 where it isn't known.
    pub tsc_hz: u64,
    /// How many vCPUs the guest has.
    pub cpus: u32,
    /// Names addresses.
    pub symbols: Arc<dyn Symbols + Send + Sync>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest")
            .field("tsc_hz", &self.tsc_hz)
            .field("cpus", &self.cpus)
            .finish_non_exhaustive()
    }
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text of the kernel's `trace` file.
    Ftrace,
    /// One JSON value a line.
    JsonLines,
    /// A Perfetto trace.
    Perfetto,
    /// trace-cmd's `trace.dat`, version 6.
    TraceDat,
    /// One stack a line, with how often it occurred.
    Folded,
    /// A flame graph.
    FlameGraph,
}

impl Format {
    /// Each ending and its format.
    pub const ENDINGS: [(&'static str, Self); 8] = [
        ("txt", Self::Ftrace),
        ("json", Self::JsonLines),
        ("jsonl", Self::JsonLines),
        ("perfetto-trace", Self::Perfetto),
        ("pftrace", Self::Perfetto),
        ("dat", Self::TraceDat),
        ("folded", Self::Folded),
        ("svg", Self::FlameGraph),
    ];

    /// Returns the format that a file's name ends in, if it is one of [`Format::ENDINGS`].
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?;
        let mut endings = Self::ENDINGS.iter();
        endings
            .find(|(known, _)| ending.eq_ignore_ascii_case(known))
            .map(|(_, format)| *format)
    }
}

/// Why a file for events can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The name tells no format.
    #[error(
        "{} ends in no known format: .txt, .json, .jsonl, .perfetto-trace, .pftrace, .dat, .folded or .svg",
        .0.display()
    )]
    Ending(PathBuf),
    /// The file, or a temporary one for what it has to collect, can't be made.
    #[error("can't create {}", .0.display())]
    Create(PathBuf, #[source] io::Error),
}

/// Creates a file, and the writer for the format that its name ends in. A file that is there already is
/// overwritten.
///
/// # Errors
/// See [`CreateError`].
pub fn create(path: &Path, guest: &Guest) -> Result<Box<dyn Writer + Send>, CreateError> {
    let format = Format::of(path).ok_or_else(|| CreateError::Ending(path.to_owned()))?;
    let failed = |error| CreateError::Create(path.to_owned(), error);
    let out = BufWriter::new(File::create(path).map_err(failed)?);
    Ok(match format {
        Format::Ftrace => Box::new(Ftrace::new(out, guest, Header::Full).map_err(failed)?),
        Format::JsonLines => Box::new(JsonLines::new(out, guest)),
        Format::Perfetto => Box::new(Perfetto::new(out, guest)),
        Format::TraceDat => Box::new(TraceDat::new(out, guest).map_err(failed)?),
        Format::Folded => Box::new(Folded::new(out, guest)),
        Format::FlameGraph => Box::new(FlameGraph::new(out, guest)),
    })
}
