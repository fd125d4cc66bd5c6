//! Following a guest's console by conditions, never by time.

use serde_json::Value;
use vmprobe_client::{Client, ConsoleInput, ConsoleOutput, words};

use crate::test::{Failure, wrong};

/// What the reports of the Linux guests' PID 1 start with.
const REPORT: &str = "@guest ";

/// A console with its input, and what has been read of it.
#[derive(Debug)]
pub struct Console {
    client: Client,
    vm: String,
    input: ConsoleInput,
    output: ConsoleOutput,
    /// Bytes that were read and not yet asked for.
    pending: Vec<u8>,
    ended: bool,
}

impl Console {
    /// Attaches to the console of a VM.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn attach(client: &Client, vm: &str) -> Result<Self, Failure> {
        let (input, output) = client.attach_console(vm).await?;
        Ok(Self {
            client: client.clone(),
            vm: vm.to_owned(),
            input,
            output,
            pending: Vec::new(),
            ended: false,
        })
    }

    /// Types these bytes.
    ///
    /// # Errors
    /// If the console has ended.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.input.send(bytes.to_vec()).await?)
    }

    /// Waits for this number of bytes and returns them.
    ///
    /// # Errors
    /// If the guest ends first.
    pub async fn bytes(&mut self, count: usize) -> Result<Vec<u8>, Failure> {
        while self.pending.len() < count {
            if !self.more().await? {
                let found = self.pending.len();
                return Err(self
                    .ended_before(&format!("{count} bytes ({found} came)"))
                    .await);
            }
        }
        Ok(self.pending.drain(..count).collect())
    }

    /// Returns everything up to the guest's end.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn rest(&mut self) -> Result<Vec<u8>, Failure> {
        while self.more().await? {}
        Ok(std::mem::take(&mut self.pending))
    }

    /// Returns the next line without its end, or `None` after the guest's end. It is shown in the
    /// test's output.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn line(&mut self) -> Result<Option<String>, Failure> {
        loop {
            let end = self.pending.iter().position(|&byte| byte == b'\n');
            let line: Vec<u8> = match end {
                Some(end) => self.pending.drain(..=end).collect(),
                None if self.more().await? => continue,
                None if self.pending.is_empty() => return Ok(None),
                None => std::mem::take(&mut self.pending),
            };
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            crate::note(&format!("guest | {text}"));
            return Ok(Some(text));
        }
    }

    /// Waits for a line that contains this text.
    ///
    /// # Errors
    /// If the guest ends first.
    pub async fn wait_for(&mut self, text: &str) -> Result<String, Failure> {
        while let Some(line) = self.line().await? {
            if line.contains(text) {
                return Ok(line);
            }
        }
        Err(self.ended_before(&format!("a line with {text:?}")).await)
    }

    /// Waits for a report of this event by the guest's PID 1. A report that PID 1 can't do what it
    /// was asked for is a failure.
    ///
    /// # Errors
    /// If the guest ends first.
    pub async fn report(&mut self, event: &str) -> Result<Value, Failure> {
        loop {
            let line = self
                .wait_for(REPORT)
                .await
                .map_err(|error| wrong!("no report {event:?} from the guest: {error}"))?;
            let json = line.split_once(REPORT).map_or("", |(_, json)| json);
            let report: Value = serde_json::from_str(json)
                .map_err(|error| wrong!("the guest's report {json:?} is no JSON: {error}"))?;
            if report["event"] == event {
                return Ok(report);
            }
            if report["event"] == "error" {
                return Err(wrong!("the guest says: {}", report["message"]));
            }
        }
    }

    /// Returns the failure that the guest ended too early, and how it did.
    async fn ended_before(&self, what: &str) -> Failure {
        match self.client.wait_vm(&self.vm).await {
            Ok(ending) => wrong!("the guest ended ({}) before {what}", words::ending(&ending)),
            Err(error) => error.into(),
        }
    }

    async fn more(&mut self) -> Result<bool, Failure> {
        if self.ended {
            return Ok(false);
        }
        match self.output.next().await? {
            Some(chunk) if chunk.dropped > 0 => {
                Err(wrong!("{} bytes of the console are lost", chunk.dropped))
            }
            Some(chunk) => {
                self.pending.extend(chunk.output);
                Ok(true)
            }
            None => {
                self.ended = true;
                Ok(false)
            }
        }
    }
}
