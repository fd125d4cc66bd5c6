//! A receiver of OpenTelemetry's protocol, made of Python's libraries.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::context::Context;
use crate::test::{Failure, wrong};

const PROGRAM: &str = include_str!("receiver.py");

/// A receiver. It is killed when this is dropped.
pub struct Receiver {
    process: Child,
    told: Lines<BufReader<ChildStdout>>,
    /// Where it listens.
    pub port: u64,
}

/// A request that it has taken.
#[derive(Debug)]
pub struct Taken {
    /// `metrics` or `logs`.
    pub kind: String,
    /// The request's headers.
    pub headers: Value,
    /// The request, in the protocol's JSON.
    pub request: Value,
}

impl Receiver {
    /// Starts one at any port, or at this one if it isn't 0. With a folder of certificates, clients need those. Returns
    /// when it listens.
    ///
    /// # Errors
    /// If it doesn't start.
    pub async fn start(cx: &Context, port: u64, certs: Option<&Path>) -> Result<Self, Failure> {
        let mut command = Command::new("python3");
        command.arg("-c").arg(PROGRAM);
        if let Some(certs) = certs {
            let files = ["server.pem", "server.key", "ca.pem"];
            command.args(files.map(|name| certs.join(name)));
        }
        let mut process = command
            .env("PYTHONPATH", cx.program("otlp-receiver"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Failure::io("start a receiver"))?;
        let output = process.stdout.take();
        let output = output.ok_or_else(|| wrong!("the receiver has no output"))?;
        let mut told = BufReader::new(output).lines();
        let first = line(&mut told).await?;
        let port = first["port"].as_u64().filter(|port| *port > 0);
        Ok(Self {
            process,
            told,
            port: port.ok_or_else(|| wrong!("the receiver listens nowhere: {first}"))?,
        })
    }

    /// The next request that it has taken.
    ///
    /// # Errors
    /// If it has ended.
    pub async fn next(&mut self) -> Result<Taken, Failure> {
        let mut line = line(&mut self.told).await?;
        Ok(Taken {
            kind: line["kind"].as_str().unwrap_or_default().to_owned(),
            headers: line["headers"].take(),
            request: line["request"].take(),
        })
    }

    /// Kills it, and returns what it has taken before.
    ///
    /// # Errors
    /// If it can't be killed.
    pub async fn kill(mut self) -> Result<Vec<Taken>, Failure> {
        self.process
            .kill()
            .await
            .map_err(Failure::io("kill a receiver"))?;
        let mut rest = Vec::new();
        while let Ok(taken) = self.next().await {
            rest.push(taken);
        }
        Ok(rest)
    }
}

async fn line(told: &mut Lines<BufReader<ChildStdout>>) -> Result<Value, Failure> {
    let line = told.next_line().await;
    let line = line.map_err(Failure::io("read what a receiver tells"))?;
    let line = line.ok_or_else(|| wrong!("the receiver has ended"))?;
    serde_json::from_str(&line).map_err(|error| wrong!("{error} in {line:?}"))
}
