//! The product's server, as a process of its own.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use vmprobe_client::Client;

use crate::context::Context;
use crate::process::Process;
use crate::test::{Failure, wrong};

/// What the server announces its addresses with.
const CALLS: &str = "listening on ";
const METRICS: &str = "metrics on ";

/// Returns the address that the server announces next, with these words before it.
fn announced(output: &mut impl BufRead, words: &str) -> Result<String, Failure> {
    let mut line = String::new();
    let read = output.read_line(&mut line);
    read.map_err(Failure::io("read the server's announcement"))?;
    let endpoint = line.trim_end().strip_prefix(words);
    let endpoint =
        endpoint.ok_or_else(|| wrong!("the server announced {line:?} instead of its address"))?;
    Ok(endpoint.to_owned())
}

/// A running `vmprobed` on a socket of its own. It ends with its standard input: when this is
/// dropped, and when the test's process dies.
#[derive(Debug)]
pub struct Server {
    child: Child,
    input: Option<ChildStdin>,
    // Held open so that the server's writes don't fail.
    output: Mutex<BufReader<ChildStdout>>,
    // The folder with its socket.
    _folder: TempDir,
    /// Where it listens, as a URL.
    pub endpoint: String,
}

impl Server {
    /// Starts a server, and returns when it listens.
    ///
    /// # Errors
    /// If it can't be started or ends at once.
    pub fn start(cx: &Context) -> Result<Self, Failure> {
        Self::start_with(cx, |_| {})
    }

    /// As [`start`](Self::start); `change` can change the command before.
    ///
    /// # Errors
    /// If it can't be started or ends at once.
    pub fn start_with(cx: &Context, change: impl FnOnce(&mut Command)) -> Result<Self, Failure> {
        Self::start_program(&cx.program("vmprobed"), change)
    }

    /// As [`start_with`](Self::start_with), with the program at this path.
    ///
    /// # Errors
    /// As said.
    pub fn start_program(
        program: &Path,
        change: impl FnOnce(&mut Command),
    ) -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder for a socket"))?;
        // Other users may use it too, for a server that runs as another user.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777))
            .map_err(Failure::io("open a folder"))?;
        let socket = folder.path().join("vmprobed.sock");
        let mut command = Command::new(program);
        command
            .args(["--listen", &format!("unix:{}", socket.display())])
            .arg("--exit-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut child = command
            .spawn()
            .map_err(Failure::io(format!("start {}", program.display())))?;
        let input = child.stdin.take();
        let output = child
            .stdout
            .take()
            .ok_or_else(|| wrong!("the server has no output"))?;
        let mut output = BufReader::new(output);
        let endpoint = announced(&mut output, CALLS)?;
        Ok(Self {
            endpoint,
            child,
            input,
            output: Mutex::new(output),
            _folder: folder,
        })
    }

    /// Returns the next further address that it announces.
    ///
    /// # Errors
    /// If there is none.
    pub fn next_endpoint(&self) -> Result<String, Failure> {
        self.announced(CALLS)
    }

    /// Returns the address of its metrics, by its next announcement.
    ///
    /// # Errors
    /// If the next announcement is of something else.
    pub fn metrics_endpoint(&self) -> Result<String, Failure> {
        self.announced(METRICS)
    }

    fn announced(&self, words: &str) -> Result<String, Failure> {
        let output = self.output.lock();
        announced(&mut *output.unwrap_or_else(PoisonError::into_inner), words)
    }

    /// A new connection to it.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.endpoint).await?)
    }

    /// A new connection for calls that [`Client`] doesn't make.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub async fn channel(&self) -> Result<Channel, Failure> {
        let channel = match Endpoint::from_shared(self.endpoint.clone()) {
            Ok(endpoint) => endpoint.connect().await,
            Err(error) => Err(error),
        };
        channel.map_err(|error| wrong!("can't connect: {error}"))
    }

    /// Its process.
    pub fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// The processes of its VMs.
    ///
    /// # Errors
    /// If it has gone.
    pub fn vm_processes(&self) -> Result<Vec<Process>, Failure> {
        let mut started = self.process().started()?;
        started.retain(|process| process.vm().is_some());
        Ok(started)
    }

    /// The process of the VM of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn vm_process(&self, vm: &str) -> Result<Process, Failure> {
        let mut started = self.vm_processes()?.into_iter();
        let found = started.find(|process| process.vm().as_deref() == Some(vm));
        found.ok_or_else(|| wrong!("the server has no process for the VM {vm}"))
    }

    /// Ends it and returns its exit code.
    ///
    /// # Errors
    /// If it can't be waited for.
    pub fn stop(mut self) -> Result<Option<i32>, Failure> {
        drop(self.input.take());
        let status = self
            .child
            .wait()
            .map_err(Failure::io("wait for the server"))?;
        Ok(status.code())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.input.take());
        // The test's verdict doesn't depend on it any more.
        let _ = self.child.wait();
    }
}
