//! `vmprobe ci`: boots kernels, runs a test on each, and reports.
//!
//! [`plan`] makes jobs of the command line and the [`matrix`], [`runner`] runs them side by side. [`attempt`] is one
//! run of a job, with a server of its own: while the guest runs, [`console_watch`], [`command_watch`] and
//! [`event_watch`] read what it tells. A job is judged by its [`outcome`], and [`report`] writes that down.

mod artifacts;
mod attempt;
mod command_watch;
mod console_watch;
mod error;
mod event_watch;
mod expectation;
mod kubernetes;
mod matrix;
mod outcome;
mod plan;
mod planted;
mod progress;
mod report;
mod runner;
#[cfg(test)]
mod samples;
mod settings;
mod standing;

use std::fs::{self, File};
use std::io::BufWriter;

pub use error::CiError;
pub use kubernetes::manifests;

use crate::cli::{Ci, Format};
use crate::commands::session::interrupted;
use crate::failure::Failure;
use crate::output::print;

/// Exit code when a job has failed.
const FAILED: u8 = 1;

/// Runs what is asked for. Returns the exit code.
pub async fn ci(asked: &Ci) -> Result<u8, Failure> {
    let jobs = plan::jobs(asked)?;
    let results = tokio::select! {
        results = runner::run_all(asked, jobs) => results?,
        failure = interrupted() => return Err(failure),
    };
    let report = report::json::report(&results);
    if let Some(file) = &asked.json {
        let text = format!("{report:#}\n");
        fs::write(file, text).map_err(|cause| CiError::Write {
            file: file.clone(),
            cause,
        })?;
    }
    if let Some(path) = &asked.junit {
        let to = File::create(path).map_err(|cause| CiError::Write {
            file: path.clone(),
            cause,
        })?;
        let written = report::junit::report(&results).serialize(BufWriter::new(to));
        written.map_err(|cause| CiError::Junit {
            file: path.clone(),
            cause,
        })?;
    }
    print([match asked.output {
        Format::Text => report::text::summary(&results),
        Format::Json => report.to_string(),
    }])?;
    let failed = results.iter().any(|result| !result.passed());
    Ok(if failed { FAILED } else { 0 })
}
