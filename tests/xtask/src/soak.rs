//! `xtask soak`: random clients against a server with two guests on this machine, for the requested time.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use lab::BuildError;

use crate::command::{self, CommandError};
use crate::machine::Programs;
use crate::{root, say};

/// Time beyond the soak's own: for its last epoch. It only ends a soak that hangs.
const MARGIN: Duration = Duration::from_secs(15 * 60);

/// How to soak.
#[derive(Debug, Args)]
pub struct Options {
    /// How long, in seconds.
    #[arg(long, value_name = "NUMBER", default_value_t = 3600)]
    seconds: u64,
    /// Where random numbers begin, to draw the same again; by default anywhere.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

/// Why there was no soak.
#[derive(Debug, thiserror::Error)]
pub enum SoakError {
    /// A program doesn't build.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The soak did not come to its end.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Soaks. Returns true if everything stayed as expected. The report is in target/soak.json.
///
/// # Errors
/// If it can't be done.
pub fn run(options: &Options) -> Result<bool, SoakError> {
    let programs = Programs::build()?;
    let mut soak = Command::new(&programs.e2e);
    soak.arg("soak")
        .args(["--seconds", &options.seconds.to_string()])
        .args(
            options
                .seed
                .iter()
                .flat_map(|seed| ["--seed".to_owned(), seed.to_string()]),
        )
        .arg("--report")
        .arg(report())
        .env("VMPROBE_BIN_DIR", &programs.folder);
    let limit = Duration::from_secs(options.seconds).saturating_add(MARGIN);
    Ok(command::run(&mut soak, limit, say)?.success())
}

fn report() -> PathBuf {
    root().join("target").join("soak.json")
}
