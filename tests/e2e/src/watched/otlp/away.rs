//! A receiver that goes and comes back.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::read;
use super::receiver::Receiver;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};
use crate::watched::scrape::value;
use crate::watched::{VM, Watched};

pub const AWAY: Test = Test {
    name: "no_record_is_lost_while_a_receiver_is_away_and_what_is_left_at_the_end_is_counted",
    ids: &["SV06", "SV10"],
    needs: Needs::Host,
    run: away,
};

/// Calls at a time, each of which is a record.
const CALLS: usize = 30;

/// Makes calls that are audited.
async fn call(watched: &Watched) -> Result<(), Failure> {
    for _ in 0..CALLS / 2 {
        watched.client.disarm_probes(VM).await?;
        watched.client.arm_probes(VM).await?;
    }
    Ok(())
}

/// The calls in a request, each by its time, which is unique.
fn calls(request: &Value) -> impl Iterator<Item = u64> + use<> {
    let records = read::records(request).into_iter();
    let calls = records.filter(|it| it["target"] == "vmprobe.audit");
    calls.filter_map(|it| it["time"].as_u64())
}

fn log(folder: &Path) -> Result<String, Failure> {
    fs::read_to_string(folder.join("log")).map_err(Failure::io("read the log"))
}

fn audited(folder: &Path) -> Result<usize, Failure> {
    let text = fs::read_to_string(folder.join("audit"));
    Ok(text
        .map_err(Failure::io("read the audit log"))?
        .lines()
        .count())
}

fn away(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let folder = folder.path();
    let file = File::create(folder.join("log")).map_err(Failure::io("make a log"))?;
    cx.block_on(async {
        let receiver = Receiver::start(cx, 0, None).await?;
        let port = receiver.port;
        let url = format!("http://127.0.0.1:{port}");
        let mut watched = Watched::start_with(cx, |command| {
            command
                .args(["--otlp", &url, "--otlp-interval", "100"])
                .args(["--log-level", "warn"])
                .arg("--audit-log")
                .arg(folder.join("audit"))
                .stderr(file);
        })
        .await?;
        call(&watched).await?;
        let mut known = BTreeSet::new();
        let mut receiver = receiver;
        while known.len() < audited(folder)? {
            known.extend(calls(&receiver.next().await?.request));
        }
        let taken = receiver.kill().await?;
        known.extend(taken.iter().flat_map(|it| calls(&it.request)));
        // Neither guests nor calls wait for the receiver.
        call(&watched).await?;
        watched.call(5).await?;
        let up = |signal: &str| format!("vmprobe_otlp_up{{signal=\"{signal}\"}}");
        loop {
            let metrics = watched.get("/metrics").await?;
            if value(&metrics, &up("logs"))? == 0.0 && value(&metrics, &up("metrics"))? == 0.0 {
                break;
            }
        }
        let metrics = watched.get("/metrics").await?;
        let dropped = "vmprobe_otlp_dropped_total";
        check_eq!(
            value(&metrics, &format!("{dropped}{{signal=\"logs\"}}"))?,
            0.0,
            "records that were dropped"
        );
        let mut receiver = Receiver::start(cx, port, None).await?;
        while known.len() < audited(folder)? {
            known.extend(calls(&receiver.next().await?.request));
        }
        check_eq!(
            known.len(),
            audited(folder)?,
            "calls that the receiver knows"
        );
        loop {
            let metrics = watched.get("/metrics").await?;
            let samples = value(&metrics, &format!("{dropped}{{signal=\"metrics\"}}"))?;
            check!(
                samples != 0.0,
                "samples of meanwhile were dropped: {samples}"
            );
            if value(&metrics, &up("logs"))? == 1.0 && value(&metrics, &up("metrics"))? == 1.0 {
                break;
            }
        }
        // Each change of state is logged once, and these log lines aren't sent to the receiver.
        let told = log(folder)?;
        for signal in ["metrics", "logs"] {
            for text in [
                format!("takes no {signal}: "),
                format!("takes {signal} again; "),
            ] {
                check_eq!(told.matches(&text).count(), 1, "{text:?} in {told}");
            }
        }
        check!(
            told.contains("takes logs again; 0 were dropped"),
            "what was dropped is told in {told}"
        );

        receiver.kill().await?;
        call(&watched).await?;
        check_eq!(watched.server.stop()?, Some(0), "the server's exit code");
        let told = log(folder)?;
        let left = told.rsplit_once("did not take the last ");
        let left = left.and_then(|(_, rest)| rest.split(' ').next()?.parse::<usize>().ok());
        let left = left.ok_or_else(|| wrong!("what is left isn't told in {told}"))?;
        check!(left >= CALLS, "{left} of {CALLS} calls are told as left");
        pass_with(format!("{} calls, {left} records left", known.len()))
    })
}
