//! What ends the command line without success, and how it is told.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitStatus;

use vmprobe_client::spec::{SpecError, render};
use vmprobe_client::{ClientError, PushError};
use vmprobe_command_line::ManualError;
use vmprobe_exports::SinkError;
use vmprobe_gdb::ServeError;
use vmprobe_trace_formats::CreateError;

use crate::certificates::CertificateError;
use crate::ci::CiError;
use crate::client_configuration::{ClientConfigurationError, CredentialsError, NoSuchServer};
use crate::cloud_init::CloudInitError;
use crate::host_root::RootError;
use crate::paths::PathError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{}", render(.0, None))]
    Spec(#[from] SpecError),
    #[error("{}", render(.error, .file.to_str()))]
    SpecFile {
        file: PathBuf,
        error: Box<SpecError>,
    },
    #[error("can't read {}: {cause}", .file.display())]
    ReadFile { file: PathBuf, cause: io::Error },
    #[error(
        "{}: no definition before `-:{name}` has that name, and other probes are removed by \
         `vmprobe probe rm`",
        .file.display()
    )]
    Removal { file: PathBuf, name: String },
    #[error("a filter is for definitions, and there is none: give one, such as 'p vfs_read'")]
    FilterOfNothing,
    #[error(
        "`{definition}` tells no latency: give a function or a return probe, such as 'r vfs_read'"
    )]
    NoReturn { definition: String },
    #[error("a flame graph goes to a file that ends in .svg or .folded, not to {}", .file.display())]
    NotFlame { file: PathBuf },
    #[error("{}{}", .0, source_text(.0))]
    Create(#[from] CreateError),
    #[error("the server at {server} has no VM: create one with `vmprobe vm create`")]
    NoVm { server: String },
    #[error("the server at {server} has several VMs: choose with --vm one of {names}")]
    SeveralVms { server: String, names: String },
    #[error(
        "no probe is called `{name}`: `vmprobe probe list` shows those there are; a definition \
         begins with its kind, such as 'p {name}'"
    )]
    NoProbe { name: String },
    #[error(
        "a probe still waits after {seconds} s to become a jump: `vmprobe probe list` shows which; \
         probes wait until the guest's kernel has started"
    )]
    StillWaiting { seconds: u64 },
    #[error(
        "--set, --write, --override and --pause are for probes that the trace defines, and it defines none: \
         give a definition such as 'p:open do_sys_openat2', or use `vmprobe probe add`"
    )]
    NothingToActAt,
    #[error(transparent)]
    Gdb(#[from] ServeError),
    #[error("can't write the dump to {}: {cause}", .file.display())]
    DumpFile { file: PathBuf, cause: io::Error },
    #[error("can't wait for gdb on {address}: {cause}; choose another address with --listen")]
    GdbListen {
        address: SocketAddr,
        cause: io::Error,
    },
    #[error(
        "{address} can be reached from other hosts, and gdb's protocol has no authentication: listen on 127.0.0.1"
    )]
    GdbNotLoopback { address: SocketAddr },
    #[error("no stage of this kernel's boot can be probed: {reason}")]
    NoStage { reason: String },
    #[error("the server doesn't know the frequency of the guest's TSC, so there are no times")]
    NoFrequency,
    #[error("can't write standard output: {0}")]
    Output(io::Error),
    #[error("can't write events to {}: {cause}", .file.display())]
    EventFile { file: PathBuf, cause: io::Error },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(
        "can't start the server `{}`: {cause}; `vmprobed` is looked for beside this program, then in PATH",
        .program.display()
    )]
    StartServer { program: OsString, cause: io::Error },
    #[error("the server of this run ended before it listened ({status}); its own message is above")]
    ServerEnded { status: ExitStatus },
    #[error("can't talk to the server of this run: {0}")]
    ServerPipe(io::Error),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    NoSuchServer(#[from] NoSuchServer),
    #[error(
        "on several servers only definitions can be traced, such as 'p vfs_read': no probe is called `{name}` on all"
    )]
    NoDefinition { name: String },
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error("{name} takes no more events")]
    SinkEnded { name: &'static str },
    #[error("there is nothing to trace: give a definition, such as 'p vfs_read'")]
    NothingToTrace,
    #[error(transparent)]
    Push(#[from] PushError),
    #[error(transparent)]
    Configuration(#[from] ClientConfigurationError),
    #[error(transparent)]
    Manual(#[from] ManualError),
    #[error(transparent)]
    Certs(#[from] CertificateError),
    #[error(transparent)]
    Root(RootError),
    #[error(transparent)]
    CloudInit(#[from] CloudInitError),
    #[error(
        "--initramfs and --root exclude each other: a guest with a folder as its root boots from an initramfs of its own"
    )]
    TwoRoots,
    #[error("the guest ended before its command did: {ending}{said}")]
    NoCommandEnd { ending: String, said: String },
    #[error(transparent)]
    Ci(#[from] CiError),
    #[error("can't set the terminal: {0}")]
    Terminal(io::Error),
    #[error("can't start the asynchronous runtime: {0}")]
    Runtime(io::Error),
    #[error("stopped by signal {0}")]
    Signal(u8),
}

impl From<RootError> for Failure {
    fn from(error: RootError) -> Self {
        match error {
            RootError::Output(cause) => Self::Output(cause),
            other => Self::Root(other),
        }
    }
}

impl Failure {
    /// Tells the user, unless the reader of the output has gone or the user knows the reason
    /// already.
    #[expect(clippy::print_stderr, reason = "the one place where errors are shown")]
    pub fn report(&self) {
        if !self.is_closed_pipe() && !matches!(self, Self::Signal(_)) {
            eprintln!("vmprobe: {self}");
        }
    }

    /// Returns the exit code, where it isn't the command's own for failures.
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            Self::Signal(number) => Some(128 + number),
            Self::Spec(_)
            | Self::SpecFile { .. }
            | Self::Removal { .. }
            | Self::FilterOfNothing
            | Self::NothingToActAt
            | Self::NoReturn { .. }
            | Self::NotFlame { .. }
            | Self::Configuration(_)
            | Self::Create(CreateError::Ending(_)) => Some(2),
            Self::Ci(error) if error.is_usage() => Some(2),
            _ if self.is_closed_pipe() => Some(0),
            _ => None,
        }
    }

    fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(cause) if cause.kind() == ErrorKind::BrokenPipe)
    }
}

/// Returns the cause of an error that doesn't tell it itself.
fn source_text(error: &dyn Error) -> String {
    let source = error.source();
    source.map_or_else(String::new, |source| format!(": {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_probe_is_shown_with_a_caret_under_its_column() {
        let failure = Failure::from(vmprobe_client::spec::parse("vfs_read+").unwrap_err());
        let text = failure.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1..], ["  |", "1 | vfs_read+", "  |          ^"]);
        assert_eq!(failure.exit_code(), Some(2));
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let failure = Failure::Output(ErrorKind::BrokenPipe.into());
        assert_eq!(failure.exit_code(), Some(0));
        assert_eq!(
            Failure::Output(ErrorKind::StorageFull.into()).exit_code(),
            None
        );
    }
}
