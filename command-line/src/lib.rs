//! What the command lines of `vmprobe` and `vmprobed` share. Both are [`clap::Command`]s, and all here is made of
//! what those say: scripts that complete words in a shell, manual pages, and the options of a configuration file.

#![forbid(unsafe_code)]

mod completions;
mod configuration;
mod manual;

pub use completions::{Shell, completions};
pub use configuration::{ConfigurationError, with_file};
pub use manual::{ManualError, write_manual};
