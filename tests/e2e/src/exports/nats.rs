//! A server of NATS with JetStream.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::context::Context;
use crate::http;
use crate::test::{Failure, wrong};

const AGAIN: Duration = Duration::from_millis(20);

/// A server with a folder of its own. It is killed when this is dropped.
pub struct Nats {
    process: Child,
    folder: TempDir,
    args: Vec<String>,
    /// The ports for clients and for monitoring.
    ports: [u16; 2],
}

impl Nats {
    /// Starts one with these arguments, at ports that are free, and waits until it listens.
    ///
    /// # Errors
    /// It ends.
    pub async fn start(cx: &Context, within: &Path, args: &[&str]) -> Result<Self, Failure> {
        let folder = TempDir::new_in(within).map_err(Failure::io("make a folder"))?;
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        let any = [-1, -1];
        let mut nats = Self {
            process: process(cx, folder.path(), &args, any)?,
            folder,
            args,
            ports: [0; 2],
        };
        while !nats.has_told_its_ports()? {
            nats.goes_on()?;
            sleep(AGAIN).await;
        }
        nats.is_ready().await?;
        Ok(nats)
    }

    /// Kills it.
    ///
    /// # Errors
    /// It has ended.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        let killed = self.process.kill().await;
        killed.map_err(Failure::io("kill nats-server"))
    }

    /// Starts it again with the same folder and ports, and waits until it listens.
    ///
    /// # Errors
    /// It ends.
    pub async fn start_again(&mut self, cx: &Context) -> Result<(), Failure> {
        let ports = self.ports.map(i32::from);
        self.process = process(cx, self.folder.path(), &self.args, ports)?;
        self.is_ready().await
    }

    /// Where clients connect.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// Returns how many messages all its streams have.
    ///
    /// # Errors
    /// It doesn't answer.
    pub async fn messages(&self) -> Result<u64, Failure> {
        let monitor = format!("127.0.0.1:{}", self.ports[1]);
        let text = http::get(&monitor, "/jsz").await?;
        let told: Value = serde_json::from_str(&text).map_err(|error| wrong!("{error}: {text}"))?;
        Ok(told["messages"].as_u64().unwrap_or(0))
    }

    /// Waits until it has this number of messages.
    ///
    /// # Errors
    /// It doesn't answer.
    pub async fn has(&self, messages: u64) -> Result<(), Failure> {
        while self.messages().await? < messages {
            sleep(AGAIN).await;
        }
        Ok(())
    }

    async fn is_ready(&mut self) -> Result<(), Failure> {
        while self.messages().await.is_err() {
            self.goes_on()?;
            sleep(AGAIN).await;
        }
        Ok(())
    }

    fn goes_on(&mut self) -> Result<(), Failure> {
        let ended = self.process.try_wait();
        match ended.map_err(Failure::io("look after nats-server"))? {
            None => Ok(()),
            Some(status) => {
                let log = fs::read_to_string(log(self.folder.path())).unwrap_or_default();
                Err(wrong!("nats-server ended: {status}; {log}"))
            }
        }
    }

    /// Reads its file of ports. Returns false while it isn't written.
    fn has_told_its_ports(&mut self) -> Result<bool, Failure> {
        let id = self.process.id().unwrap_or_default();
        let file = self.folder.path().join(format!("nats-server_{id}.ports"));
        let Ok(text) = fs::read_to_string(file) else {
            return Ok(false);
        };
        // The file may be written in part.
        let Ok(told) = serde_json::from_str::<Value>(&text) else {
            return Ok(false);
        };
        let port = |of: &str| {
            let url = told[of][0].as_str()?;
            url.rsplit(':').next()?.parse().ok()
        };
        let ports = port("nats").zip(port("monitoring"));
        let (clients, monitor) = ports.ok_or_else(|| wrong!("ports of nats-server: {text}"))?;
        self.ports = [clients, monitor];
        Ok(true)
    }
}

fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}

fn process(
    cx: &Context,
    folder: &Path,
    args: &[String],
    ports: [i32; 2],
) -> Result<Child, Failure> {
    let [port, monitor] = ports.map(|port| port.to_string());
    Command::new(cx.program("nats-server"))
        .args(["--addr", "127.0.0.1", "--jetstream", "--store_dir"])
        .arg(folder.join("store"))
        .args(["--port", &port, "--http_port", &monitor])
        .arg("--ports_file_dir")
        .arg(folder)
        .arg("--log")
        .arg(log(folder))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(Failure::io("start nats-server"))
}
