//! The product's server, as a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tonic::transport::{Channel, Endpoint};
use vmprobe_client::Client;

use crate::context::Context;
use crate::test::{Failure, wrong};

/// A running `vmprobed` on a free loopback port. It ends with its standard input: when this is
/// dropped, and when the test's process dies.
#[derive(Debug)]
pub struct Server {
    child: Child,
    input: Option<ChildStdin>,
    // Held open so that nothing the server writes fails.
    _output: BufReader<ChildStdout>,
    /// Where it listens, as a URL.
    pub endpoint: String,
}

impl Server {
    /// Starts it; returns when it listens.
    ///
    /// # Errors
    /// If it can't be started or ends at once.
    pub fn start(cx: &Context) -> Result<Self, Failure> {
        Self::start_with(cx, |_| {})
    }

    /// As [`start`](Self::start), with something changed about its command before.
    ///
    /// # Errors
    /// If it can't be started or ends at once.
    pub fn start_with(cx: &Context, change: impl FnOnce(&mut Command)) -> Result<Self, Failure> {
        let program = cx.program("vmprobed");
        let mut command = Command::new(&program);
        command
            .args(["--listen", "127.0.0.1:0", "--exit-with-stdin"])
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
        let mut line = String::new();
        output
            .read_line(&mut line)
            .map_err(Failure::io("read the server's announcement"))?;
        let endpoint = line
            .trim_end()
            .strip_prefix("listening on ")
            .ok_or_else(|| wrong!("the server announced {line:?} instead of its address"))?;
        Ok(Self {
            endpoint: endpoint.to_owned(),
            child,
            input,
            _output: output,
        })
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

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// A number from its `/proc/PID/status`, such as `VmRSS` (KiB) or `Threads`.
    ///
    /// # Errors
    /// If the process has gone or has no such number.
    pub fn status(&self, field: &str) -> Result<u64, Failure> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(&path).map_err(Failure::io(format!("read {path}")))?;
        let number = text.lines().find_map(|line| {
            let rest = line.strip_prefix(field)?.strip_prefix(':')?;
            rest.split_whitespace().next()?.parse().ok()
        });
        number.ok_or_else(|| wrong!("{path} has no number {field}"))
    }

    /// How many files it has open.
    ///
    /// # Errors
    /// If the process has gone.
    pub fn open_files(&self) -> Result<usize, Failure> {
        let path = format!("/proc/{}/fd", self.child.id());
        let entries = std::fs::read_dir(&path).map_err(Failure::io(format!("read {path}")))?;
        Ok(entries.count())
    }

    /// The names of its threads.
    ///
    /// # Errors
    /// If the process has gone.
    pub fn thread_names(&self) -> Result<Vec<String>, Failure> {
        let path = format!("/proc/{}/task", self.child.id());
        let entries = std::fs::read_dir(&path).map_err(Failure::io(format!("read {path}")))?;
        // A thread may end between the listing and the reading.
        let name = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm"));
        let names = entries.flatten().filter_map(|entry| name(entry).ok());
        Ok(names.map(|name| name.trim().to_owned()).collect())
    }

    /// How long its threads have worked, all but those of vCPUs, in ticks of the clock (`proc(5)`).
    ///
    /// # Errors
    /// If the process has gone.
    pub fn work(&self) -> Result<u64, Failure> {
        let path = format!("/proc/{}/task", self.child.id());
        let entries = std::fs::read_dir(&path).map_err(Failure::io(format!("read {path}")))?;
        let read = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("stat"));
        // A thread may end between the listing and the reading.
        let threads = entries.flatten().filter_map(|entry| read(entry).ok());
        Ok(threads.filter_map(|line| thread_work(&line)).sum())
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
        // The test's own verdict stands by now.
        let _ = self.child.wait();
    }
}

/// The user and system time of a line of `/proc/PID/task/TID/stat`; nothing if it is a vCPU's.
fn thread_work(line: &str) -> Option<u64> {
    // The name is in parentheses, and may have some itself.
    let (head, rest) = line.rsplit_once(") ")?;
    if head.split_once('(')?.1.starts_with("vcpu") {
        return None;
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(number(11)? + number(12)?)
}
