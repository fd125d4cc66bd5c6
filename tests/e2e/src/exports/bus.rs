//! Events to NATS.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use super::command::{Export, HOST, number};
use super::guest::{self, VM};
use super::python;
use crate::context::Context;
use crate::http;
use crate::server::Server;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const RESTARTED: Test = Test {
    name: "every_hit_is_once_and_in_order_in_a_stream_of_nats_that_was_killed_meanwhile",
    ids: &["SV10"],
    needs: Needs::Host,
    run: restarted,
};

pub const AWAY: Test = Test {
    name: "an_export_that_ends_while_nats_is_away_says_how_many_events_are_not_confirmed",
    ids: &["SV10"],
    needs: Needs::Host,
    run: away,
};

const STREAM: &str = "EVENTS";
const HITS: u32 = 4000;
/// Messages in the stream when its server is killed.
const BEFORE: u64 = 500;
const AGAIN: Duration = Duration::from_millis(20);

/// A server of NATS with JetStream. It is killed with this.
struct Nats {
    process: Child,
    /// Where it tells of itself.
    monitor: String,
}

impl Nats {
    fn start(cx: &Context, folder: &Path, [port, monitor]: [u16; 2]) -> Result<Self, Failure> {
        let process = Command::new(cx.program("nats-server"))
            .args(["--addr", "127.0.0.1", "--jetstream", "--store_dir"])
            .arg(folder)
            .args(["--port", &port.to_string()])
            .args(["--http_port", &monitor.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(Failure::io("start nats-server"))?;
        Ok(Self {
            process,
            monitor: format!("127.0.0.1:{monitor}"),
        })
    }

    /// Waits until it listens.
    async fn is_ready(&mut self) -> Result<(), Failure> {
        while self.messages().await.is_err() {
            let ended = self.process.try_wait();
            if let Some(status) = ended.map_err(Failure::io("look after nats-server"))? {
                return Err(wrong!("nats-server ended: {status}"));
            }
            sleep(AGAIN).await;
        }
        Ok(())
    }

    /// How many messages all its streams have.
    async fn messages(&self) -> Result<u64, Failure> {
        let text = http::get(&self.monitor, "/jsz").await?;
        let told: Value = serde_json::from_str(&text).map_err(|error| wrong!("{error}: {text}"))?;
        Ok(told["messages"].as_u64().unwrap_or(0))
    }

    async fn has(&self, messages: u64) -> Result<(), Failure> {
        while self.messages().await? < messages {
            sleep(AGAIN).await;
        }
        Ok(())
    }
}

/// Two ports that nobody listens on.
fn free_ports() -> Result<[u16; 2], Failure> {
    let listen = || TcpListener::bind("127.0.0.1:0").and_then(|at| Ok((at.local_addr()?, at)));
    let io = Failure::io("find a port");
    let both = listen().and_then(|first| Ok([first, listen()?]));
    Ok(both.map_err(io)?.map(|(address, _listener)| address.port()))
}

fn restarted(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let folder = folder.path();
    let ports = free_ports()?;
    let store = folder.join("store");
    let url = format!("nats://127.0.0.1:{}", ports[0]);
    cx.block_on(async {
        let mut nats = Nats::start(cx, &store, ports)?;
        nats.is_ready().await?;
        let server = Server::start(cx)?;
        let client = server.client().await?;
        guest::create(&client, folder, HITS).await?;
        let args = ["--nats", &url, "--nats-stream", STREAM, "--drain", "60"];
        let mut export = Export::start(cx, &server, folder, "", &args)?;
        export.says(&format!("{HOST}/{VM}: 1 probes")).await?;
        client.start_vm(VM).await?;
        nats.has(BEFORE).await?;

        nats.process.kill().await.map_err(Failure::io("kill it"))?;
        export.says("nats is away: ").await?;
        let mut nats = Nats::start(cx, &store, ports)?;
        nats.is_ready().await?;
        export.says("nats is back").await?;
        nats.has(HITS.into()).await?;
        guest::check_hits(&client, HITS.into()).await?;

        export.interrupt()?;
        check_eq!(export.end().await?, Some(0), "exit code");
        let notes = export.notes()?;
        for expected in [
            format!("{HITS} events, 0 lost, 0 out of order"),
            format!("nats: {HITS} events exported, 0 failed"),
        ] {
            check!(notes.contains(&expected), "{expected:?} isn't in {notes}");
        }
        let script = include_str!("messages.py");
        let messages: Vec<(String, Value, Value)> =
            python::run(cx, script, &[url.as_ref(), STREAM.as_ref()]).await?;
        check_eq!(messages.len(), HITS as usize, "messages");
        let mut last = String::new();
        for (at, (subject, headers, event)) in messages.iter().enumerate() {
            check_eq!(subject, "vmprobe.kvm1_example.web-1.pass", "a subject");
            check_eq!(headers["Content-Type"], "application/json", "of {event}");
            check_eq!(event["arguments"]["n"], at, "the hit in message {at}");
            check_eq!(event["host"], HOST, "the host in {event}");
            check_eq!(event["vm"], VM, "the VM in {event}");
            let time = event["time"].as_str().unwrap_or_default();
            check!(time > last.as_str(), "{time} is not behind {last}");
            last = time.to_owned();
        }
        pass_with(notes.lines().last().unwrap_or_default().to_owned())
    })
}

fn away(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let folder = folder.path();
    let ports = free_ports()?;
    let store = folder.join("store");
    let url = format!("nats://127.0.0.1:{}", ports[0]);
    cx.block_on(async {
        let mut nats = Nats::start(cx, &store, ports)?;
        nats.is_ready().await?;
        let server = Server::start(cx)?;
        let client = server.client().await?;
        guest::create(&client, folder, guest::ENDLESS).await?;
        client.start_vm(VM).await?;
        let args = ["--nats", &url, "--nats-stream", STREAM, "--drain", "1"];
        let mut export = Export::start(cx, &server, folder, "", &args)?;
        nats.has(BEFORE).await?;
        nats.process.kill().await.map_err(Failure::io("kill it"))?;
        export.says("nats is away: ").await?;
        export.interrupt()?;
        check_eq!(export.end().await?, Some(1), "exit code");

        let notes = export.notes()?;
        let unconfirmed = number(&notes, " events are not confirmed by nats")?;
        let events = number(&notes, " events, 0 lost")?;
        let exported = number(&notes, " events exported")?;
        let failed = number(&notes, " failed")?;
        check!(
            unconfirmed > 0 && unconfirmed <= failed && exported + failed == events,
            "the numbers don't go together: {notes}"
        );
        let mut nats = Nats::start(cx, &store, ports)?;
        nats.is_ready().await?;
        let messages = nats.messages().await?;
        check!(
            (exported..=events).contains(&messages),
            "{messages} messages are there: {notes}"
        );
        pass_with(format!(
            "{exported} of {events} events confirmed, {messages} messages"
        ))
    })
}
