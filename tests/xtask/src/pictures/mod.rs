//! `xtask pictures`: draws `docs/pictures` from a demonstration: its screen, its histogram, its flame
//! graph, and its trace as Perfetto's trace processor reads it.

mod trace;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anstyle_svg::Term;
use trace_processor::TraceProcessorError;

use crate::demo::{self, DemoError};
use crate::{root, say};

/// The lines at which the part of the screen with the histogram begins and ends.
const LATENCY: (&str, &str) = ("# How long", "# In mid-function");

/// Why there are no pictures.
#[derive(Debug, thiserror::Error)]
pub enum PicturesError {
    /// There is nothing to be drawn.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// Perfetto's reader can't be had, or can't read the trace.
    #[error(transparent)]
    TraceProcessor(#[from] TraceProcessorError),
    /// A file operation failed.
    #[error("can't {0} {path}", path = .1.display())]
    Io(&'static str, PathBuf, #[source] io::Error),
}

/// Runs a demonstration and draws its results. Returns true if it was a success.
///
/// # Errors
/// See [`PicturesError`].
pub fn run() -> Result<bool, PicturesError> {
    let shown = demo::run()?;
    if !shown.success {
        return Ok(false);
    }
    let folder = root().join("docs").join("pictures");
    fs::create_dir_all(&folder).map_err(|e| PicturesError::Io("make", folder.clone(), e))?;
    let flame = shown.folder.join("flame.svg");
    let flame = fs::read_to_string(&flame).map_err(|e| PicturesError::Io("read", flame, e))?;
    let drawn = [
        ("demo.svg", terminal(&shown.screen)),
        ("latency.svg", terminal(&histogram(&shown.screen))),
        ("flame.svg", flame),
        (
            "trace.svg",
            trace::draw(&shown.folder.join("trace.pftrace"))?,
        ),
    ];
    for (name, picture) in drawn {
        write(&folder.join(name), &picture)?;
    }
    Ok(true)
}

fn write(path: &Path, picture: &str) -> Result<(), PicturesError> {
    fs::write(path, picture).map_err(|e| PicturesError::Io("write", path.to_owned(), e))?;
    say(&format!("drawn: {}", path.display()));
    Ok(())
}

/// Text as a terminal shows it.
fn terminal(text: &str) -> String {
    Term::new().render_svg(text)
}

/// The command and the output of `vmprobe latency`.
fn histogram(screen: &str) -> String {
    let (begin, end) = LATENCY;
    let lines = screen.lines().skip_while(|line| !line.starts_with(begin));
    let lines = lines.take_while(|line| !line.starts_with(end));
    let lines = lines.filter(|line| match line.strip_prefix('$') {
        Some(command) => command.contains("latency"),
        None => !["#", "guest |", "vmprobe:"]
            .iter()
            .any(|other| line.starts_with(other)),
    });
    lines.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_what_latency_prints() {
        let screen = "# First\n$ vmprobe list\n# How long?\n$ vmprobe latency f &\n$ vmprobe flame &\n\
                      guest | done\nf: 3 calls\n  1 us | ###\nvmprobe: drawn\n# In mid-function\nno\n";
        assert_eq!(
            histogram(screen),
            "$ vmprobe latency f &\nf: 3 calls\n  1 us | ###\n"
        );
    }
}
