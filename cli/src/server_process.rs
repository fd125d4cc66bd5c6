//! A server that lives as long as this process.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;
use std::{env, io};

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::failure::Failure;

/// Longest wait for the server to end its VM once its input is closed.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// What the server writes before its address.
const ANNOUNCEMENT: &str = "listening on ";

/// Returns the program `vmprobed`: beside this one, else by name in PATH.
pub fn program() -> OsString {
    const NAME: &str = "vmprobed";
    env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join(NAME)))
        .filter(|beside| beside.is_file())
        .map_or_else(|| NAME.into(), Into::into)
}

/// A `vmprobed` of this process. It ends when its standard input closes, so even when this process
/// is killed.
pub struct ServerProcess {
    child: Child,
    control: ChildStdin,
    // Held open so that nothing the server ever writes fails.
    _announcements: BufReader<ChildStdout>,
    endpoint: String,
    // With the server's socket.
    _folder: TempDir,
}

impl ServerProcess {
    /// Starts the server on a socket that only this user reaches, and waits until it listens.
    pub async fn start() -> Result<Self, Failure> {
        let program = program();
        let folder = TempDir::with_prefix("vmprobe-server-").map_err(Failure::ServerPipe)?;
        let mut listen = OsString::from("unix:");
        listen.push(folder.path().join("vmprobed.sock"));
        let mut command = Command::new(&program);
        // The server isn't run as a service, so its metrics and its log are sent nowhere.
        let names = env::vars_os().map(|(name, _)| name);
        for name in names.filter(|name| name.as_encoded_bytes().starts_with(b"OTEL_")) {
            command.env_remove(name);
        }
        let mut child = command
            .arg("--listen")
            .arg(listen)
            .arg("--exit-with-stdin")
            // The guest's files are on this host, and the folder of images is another server's.
            .env_remove("VMPROBED_IMAGES")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C on the terminal is for this process; the server follows by its pipe.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|cause| Failure::StartServer { program, cause })?;
        let pipe = |name: &str| Failure::ServerPipe(io::Error::other(format!("no {name}")));
        let control = child.stdin.take().ok_or_else(|| pipe("standard input"))?;
        let output = child.stdout.take().ok_or_else(|| pipe("standard output"))?;

        let mut announcements = BufReader::new(output);
        let mut line = String::new();
        loop {
            line.clear();
            let read = announcements.read_line(&mut line).await;
            if read.map_err(Failure::ServerPipe)? == 0 {
                let status = child.wait().await.map_err(Failure::ServerPipe)?;
                return Err(Failure::ServerEnded { status });
            }
            if let Some(endpoint) = line.trim_end().strip_prefix(ANNOUNCEMENT) {
                return Ok(Self {
                    child,
                    control,
                    endpoint: endpoint.to_owned(),
                    _folder: folder,
                    _announcements: announcements,
                });
            }
        }
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Ends the server and what it runs.
    pub async fn stop(self) {
        let Self {
            mut child,
            control,
            _folder,
            ..
        } = self;
        drop(control);
        if timeout(END_TIMEOUT, child.wait()).await.is_err() {
            // An error says only that the server has ended meanwhile.
            let _ = child.kill().await;
        }
    }
}
