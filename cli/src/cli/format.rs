//! The form of what commands print.

use clap::{Args, ValueEnum};

/// How a command prints what it has found. What it says beside that is on standard error.
#[derive(Clone, Copy, Debug, Args)]
pub struct FormatArgs {
    /// The form of the output; JSON is one value a line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    output: Format,
    /// The same as `-o json`
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

impl FormatArgs {
    /// Returns true if JSON is wanted.
    pub fn is_json(self) -> bool {
        self.json || self.output == Format::Json
    }
}
