//! What is shown while jobs run: bars on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::cli::Format;
use crate::output::{print, print_beside};

/// How often a bar's time is renewed.
const TICK: Duration = Duration::from_millis(250);
/// Characters of a console's line beside a bar.
const SHOWN: usize = 100;

/// What all jobs show.
#[derive(Debug)]
pub struct Progress {
    bars: Option<MultiProgress>,
    /// True if each line of output says which job it is from.
    with_names: bool,
    quiet: bool,
    /// The form of standard output. If that is JSON, lines are shown on standard error.
    output: Format,
}

impl Progress {
    /// Begins to show `jobs` jobs. With `quiet`, their output isn't shown.
    pub fn new(jobs: usize, quiet: bool, output: Format) -> Arc<Self> {
        Arc::new(Self {
            bars: io::stderr().is_terminal().then(MultiProgress::new),
            with_names: jobs > 1,
            quiet,
            output,
        })
    }

    /// Shows a line above the bars.
    pub fn line(&self, text: &str) {
        let show = || match self.output {
            // If the pipe's reader has gone, the report finds that out.
            Format::Text => drop(print([text])),
            Format::Json => print_beside(text),
        };
        match &self.bars {
            Some(bars) => bars.suspend(show),
            None => show(),
        }
    }

    /// Begins to show a job.
    pub fn job(self: &Arc<Self>, name: &str) -> JobProgress {
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{prefix:.bold} {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            bar.set_prefix(name.to_owned());
            bar.enable_steady_tick(TICK);
            bar
        });
        if bar.is_none() && self.with_names {
            self.line(&format!("start {name}"));
        }
        JobProgress {
            all: Arc::clone(self),
            name: name.to_owned(),
            bar,
        }
    }
}

/// What one job shows.
#[derive(Clone, Debug)]
pub struct JobProgress {
    all: Arc<Progress>,
    name: String,
    bar: Option<ProgressBar>,
}

impl JobProgress {
    /// Shows a line of the guest's console.
    pub fn console(&self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(line.chars().take(SHOWN).collect::<String>());
        }
    }

    /// Shows a line of the command's output.
    pub fn output(&self, line: &str) {
        if self.all.quiet {
            return;
        }
        match self.all.with_names {
            true => self.all.line(&format!("{} | {line}", self.name)),
            false => self.all.line(line),
        }
    }

    /// Ends the job.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
