//! The log of a process, on standard error: one line for each event, as text or as JSON.
//!
//! ```json
//! {"time":"2026-11-27T10:15:30.123456Z","level":"WARN","target":"vmprobe_server::front","vm":"web-1","message":"…","fields":{"lost":7}}
//! ```
//!
//! `vm` is the VM that an event is about. All events of a VM's process are about that VM. An event is always one line,
//! even if texts of guests in it have line breaks. Copies of what is logged can be sent elsewhere ([`copies`]).

mod copies;
mod format;
mod record;
mod records;

use std::io::{self, IsTerminal, Write};
use std::panic;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use format::{JsonLines, TextLines};

pub use copies::{Copies, FromVm, ToServer, exempt_this_thread, from_vm};
pub use record::Record;
pub use records::Records;

/// The level unless the owner says otherwise.
const LEVEL: &str = "warn";
/// A variable from which many programs take their level.
const OTHERS: &str = "RUST_LOG";

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object of JSON, for programs.
    Json,
}

/// What a log tells, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct LogOptions {
    /// The form of the log's lines
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        env = "VMPROBED_LOG_FORMAT",
        default_value_t
    )]
    pub log_format: LogFormat,
    /// What is logged: a level (error, warn, info, debug, trace), or levels for parts of the program, such as
    /// `warn,vmm=debug` [default: what `RUST_LOG` says, or else warn]
    #[arg(long, value_name = "FILTER", env = "VMPROBE_LOG", value_parser = filter)]
    pub log_level: Option<String>,
}

fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl LogOptions {
    /// Returns it as words of a command line.
    pub(crate) fn to_command_line(&self) -> Vec<String> {
        let format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let mut words = vec!["--log-format".to_owned(), format.to_owned()];
        if let Some(level) = &self.log_level {
            words.extend(["--log-level".to_owned(), level.clone()]);
        }
        words
    }

    /// Returns the filter of events.
    fn filter(&self) -> EnvFilter {
        let given = self.log_level.clone();
        let given = given.or_else(|| std::env::var(OTHERS).ok());
        let filter = given.and_then(|given| EnvFilter::try_new(given).ok());
        filter.unwrap_or_else(|| EnvFilter::new(LEVEL))
    }

    /// Starts the log of this process, which is a VM's process if `vm` is given. Copies go to `copies`.
    pub fn start(&self, vm: Option<&str>, copies: Option<Copies>) {
        // By default, panics are printed as lines of text, and aren't copied.
        let panics_are_logged = copies.is_some() || self.log_format == LogFormat::Json;
        let vm: Option<String> = vm.map(str::to_owned);
        let builder = tracing_subscriber::fmt()
            .with_env_filter(self.filter())
            .with_writer(io::stderr)
            // The library would report on standard error that standard error can't be written to, and panic as that
            // fails.
            .log_internal_errors(false);
        match self.log_format {
            LogFormat::Text => {
                let colours = io::stderr().is_terminal();
                let lines = TextLines::new(vm, colours, copies);
                builder.event_format(lines).init();
            }
            LogFormat::Json => {
                vmm::confinement::frame_violations(format::violation_frame(vm.as_deref()));
                builder.event_format(JsonLines::new(vm, copies)).init();
            }
        }
        if panics_are_logged {
            panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        }
    }

    /// Reports why the process ends.
    pub fn tell_failure(&self, failure: &dyn std::error::Error) {
        match self.log_format {
            LogFormat::Text => text_failure(failure),
            LogFormat::Json => tracing::error!("{failure}"),
        }
    }
}

fn text_failure(failure: &dyn std::error::Error) {
    // If nothing can be written, the exit code still tells.
    let _ = writeln!(io::stderr(), "vmprobed: {failure}");
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        log: LogOptions,
    }

    #[test]
    fn options_of_a_log_are_handed_on_as_they_are() {
        for log in [
            LogOptions::default(),
            LogOptions {
                log_format: LogFormat::Json,
                log_level: Some("warn,vmm=debug".to_owned()),
            },
        ] {
            let words = [vec!["program".to_owned()], log.to_command_line()].concat();
            assert_eq!(Program::try_parse_from(words).unwrap().log, log);
        }
    }

    #[test]
    fn a_filter_that_is_none_is_refused() {
        let words = ["program", "--log-level", "warn,vmm=loud"];
        let error = Program::try_parse_from(words).unwrap_err().to_string();
        assert!(error.contains("--log-level"), "{error}");
    }
}
