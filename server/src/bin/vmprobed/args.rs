//! The arguments.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;

use clap::Parser;
use tracing_subscriber::EnvFilter;
use vmprobe_server::Options;

const EXIT_CODES: &str = "\
Prints one line, `listening on http://ADDRESS`, on standard output; logs go to standard
error, filtered by VMPROBE_LOG (default: warn).

Exit codes:
  0  ended by SIGTERM or SIGINT, guests killed
  1  failed; the reason is on standard error
  2  wrong arguments, or the address can't be listened on
  doctor: 0 when this host runs guests, 1 when it doesn't";

/// Serves VMs and probes over gRPC.
#[derive(Debug, Parser)]
#[command(name = "vmprobed", version, after_help = EXIT_CODES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub serve: Serve,
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Say whether this host can run guests, and what is missing
    Doctor {
        /// The report as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
pub struct Serve {
    /// Where to listen; port 0 takes any free port
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7070", value_parser = address)]
    pub listen: SocketAddr,
    /// Allow --listen on an address that other hosts reach. There is no authentication yet: whoever
    /// reaches the port controls the guests
    #[arg(long)]
    pub insecure_listen_anywhere: bool,
    /// End when standard input closes: with the process that started this one
    #[arg(long)]
    pub exit_with_stdin: bool,
}

impl Serve {
    pub fn options(&self) -> Options {
        Options {
            listen: self.listen,
            insecure_listen_anywhere: self.insecure_listen_anywhere,
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "give an IP address and a port, such as 127.0.0.1:7070 or [::1]:7070".into())
}

/// Sends the log to standard error.
pub fn start_log() {
    let filter = EnvFilter::try_from_env("VMPROBE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_bad_address_is_refused_with_an_example() {
        let error = Args::try_parse_from(["vmprobed", "--listen", "localhost"]).unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:7070"), "{error}");
    }
}
