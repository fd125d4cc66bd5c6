//! Events that `vmprobe export` sends to a receiver.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStderr, Command};

use super::read;
use super::receiver::{Receiver, Taken};
use crate::context::Context;
use crate::process::Process;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};
use crate::watched::{CALLED, VM, Watched};

pub const EVENTS: Test = Test {
    name: "each_hit_becomes_a_log_record_of_a_receiver_that_is_away_for_a_while",
    ids: &["SV10"],
    needs: Needs::Host,
    run: events,
};

/// The name of the command's probe.
const PROBE: &str = "mine";

/// Reads what the command prints up to a line with this text.
async fn said(lines: &mut Lines<BufReader<ChildStderr>>, text: &str) -> Result<String, Failure> {
    let mut told = String::new();
    loop {
        let line = lines.next_line().await;
        let line = line.map_err(Failure::io("read what the command says"))?;
        let line = line.ok_or_else(|| wrong!("it doesn't say {text:?} but {told}"))?;
        if line.contains(text) {
            return Ok(line);
        }
        told.push_str(&line);
    }
}

/// The events of a request, each by its time.
fn times(taken: &Taken) -> Result<Vec<u64>, Failure> {
    check_eq!(taken.kind, "logs", "what comes");
    let resource = read::resource(&taken.request);
    check_eq!(
        resource.get("service.name"),
        Some(&json!("vmprobe")),
        "who sends"
    );
    let host = resource.get("host.name").and_then(Value::as_str);
    check!(host.is_some_and(|it| !it.is_empty()), "the host: {host:?}");
    let mut times = Vec::new();
    for record in read::records(&taken.request) {
        check_eq!(record["vm"], VM, "the VM");
        check_eq!(record["target"], "vmprobe.events", "the scope");
        let fields = &record["fields"];
        for (key, value) in [
            ("vmprobe.probe", json!(PROBE)),
            ("vmprobe.kind", json!("pre")),
            ("vmprobe.place.symbol", json!(format!("{CALLED}+0x0"))),
            ("vmprobe.arguments.byte", json!(b'.')),
            ("cpu.logical_number", json!(0)),
        ] {
            check_eq!(fields[key], value, "{key} of {record}");
        }
        let time = record["time"].as_u64();
        times.push(time.ok_or_else(|| wrong!("{record} has no time"))?);
    }
    Ok(times)
}

fn events(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut watched = Watched::start(cx).await?;
        let mut receiver = Receiver::start(cx, 0, None).await?;
        let port = receiver.port;
        let mut command = Command::new(cx.program("vmprobe"))
            .args(["export", "--server", &watched.server.endpoint])
            .args(["--otlp", &format!("http://127.0.0.1:{port}")])
            .arg(format!("p:{PROBE} {CALLED} byte=%ax:u8"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Failure::io("start vmprobe export"))?;
        let lines = command.stderr.take();
        let lines = lines.ok_or_else(|| wrong!("the command says nothing"))?;
        let mut lines = BufReader::new(lines).lines();
        said(&mut lines, "1 probe").await?;
        let mut known = BTreeSet::new();
        watched.call(20).await?;
        while known.len() < 20 {
            known.extend(times(&receiver.next().await?)?);
        }
        receiver.kill().await?;
        watched.call(10).await?;
        said(&mut lines, "otlp is away").await?;
        let mut receiver = Receiver::start(cx, port, None).await?;
        while known.len() < 30 {
            known.extend(times(&receiver.next().await?)?);
        }
        said(&mut lines, "otlp is back").await?;
        let process = command
            .id()
            .ok_or_else(|| wrong!("the command has ended"))?;
        Process(process).signal(libc::SIGINT)?;
        let last = said(&mut lines, "otlp: ").await?;
        check!(
            last.ends_with("otlp: 30 events exported, 0 failed"),
            "{last}"
        );
        let status = command.wait().await;
        let status = status.map_err(Failure::io("wait for the command"))?;
        check_eq!(status.code(), Some(0), "its exit code");
        let more: Result<Vec<_>, _> = receiver.kill().await?.iter().map(times).collect();
        known.extend(more?.into_iter().flatten());
        check_eq!(known.len(), 30, "events of 30 hits");
        pass_with("30 events")
    })
}
