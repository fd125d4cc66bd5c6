//! What a receiver is sent, compared with what the server reports elsewhere.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::read::{self, Samples};
use super::receiver::Receiver;
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};
use crate::watched::{VM, Watched};

pub const SAME: Test = Test {
    name: "a_receiver_gets_by_tls_the_metrics_of_a_scrape_the_log_s_records_and_audited_calls",
    ids: &["SV06", "SV10"],
    needs: Needs::Host,
    run: same,
};

/// The secret by which the receiver recognizes the server.
const SECRET: &str = "quite-secret-3b9e";

/// Makes certificates: those of the server for the receiver, and that of a client for the server.
fn certificates(cx: &Context, folder: &Path) -> Result<(), Failure> {
    let mut init = Command::new(cx.program("vmprobe"));
    init.args(["certs", "init", "--client", "sender=observe", "--dir"]);
    let made = init.arg(folder).stdin(Stdio::null()).output();
    let made = made.map_err(Failure::io("run vmprobe certs"))?;
    let errors = String::from_utf8_lossy(&made.stderr);
    check!(made.status.success(), "{errors}");
    Ok(())
}

/// Lines of JSON of a file.
fn lines(file: &Path) -> Result<Vec<Value>, Failure> {
    let text = fs::read_to_string(file).map_err(Failure::io("read a log"))?;
    check!(!text.contains(SECRET), "a secret is in {}", file.display());
    let parsed = text.lines().map(serde_json::from_str);
    let parsed: Result<_, _> = parsed.collect();
    parsed.map_err(|error| wrong!("{error} in {text}"))
}

/// Returns a line of the log as a record of a receiver.
fn expected(line: &Value) -> Result<Value, Failure> {
    let severities = [
        ("TRACE", 1),
        ("DEBUG", 5),
        ("INFO", 9),
        ("WARN", 13),
        ("ERROR", 17),
    ];
    let mut severity = severities
        .iter()
        .filter(|(level, _)| line["level"] == *level);
    let (_, severity) = severity.next().ok_or_else(|| wrong!("{line}"))?;
    let names = ["UNSPECIFIED", "TRACE", "DEBUG", "INFO", "WARN", "ERROR"];
    Ok(json!({
        "time": nanos(&line["time"])?,
        "level": line["level"],
        "severity": format!("SEVERITY_NUMBER_{}", names[(severity / 4 + 1) as usize]),
        "target": line["target"],
        "vm": line["vm"],
        "message": line["message"],
        "fields": match &line["fields"] {
            Value::Null => json!({}),
            fields => fields.clone(),
        },
    }))
}

/// A time as the log has it, in nanoseconds since 1970.
fn nanos(time: &Value) -> Result<u64, Failure> {
    let text = time.as_str().unwrap_or_default();
    let time = humantime::parse_rfc3339(text).map_err(|error| wrong!("{error}: {time}"))?;
    let since = time.duration_since(UNIX_EPOCH);
    Ok(since.unwrap_or_default().as_nanos() as u64)
}

/// Returns what two scrapes, before and after, agree on: the samples that don't change meanwhile. A scrape itself is a
/// connection.
fn standing(before: &str, after: &str) -> Samples {
    let after = read::scraped(after);
    let mut samples = read::scraped(before);
    samples.retain(|name, value| {
        let is_of_scrape = ["process_", "vmprobe_connections"]
            .iter()
            .any(|begin| name.starts_with(begin));
        !is_of_scrape && after.get(name) == Some(value)
    });
    samples
}

fn same(cx: &Context) -> TestResult {
    let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
    let at = |name: &str| folder.path().join(name);
    certificates(cx, &at("certs"))?;
    let log = File::create(at("log")).map_err(Failure::io("make a log"))?;
    cx.block_on(async {
        let mut receiver = Receiver::start(cx, 0, Some(&at("certs"))).await?;
        let mut watched = Watched::start_with(cx, |command| {
            let url = format!("https://localhost:{}", receiver.port);
            command.args(["--otlp", &url, "--otlp-interval", "100"]);
            for (option, file) in [
                ("--otlp-ca", "ca.pem"),
                ("--otlp-cert", "sender.pem"),
                ("--otlp-key", "sender.key"),
            ] {
                command.arg(option).arg(at("certs").join(file));
            }
            command
                .env(
                    "OTEL_EXPORTER_OTLP_HEADERS",
                    format!("x-token=Bearer%20{SECRET}"),
                )
                .env(
                    "OTEL_RESOURCE_ATTRIBUTES",
                    "deployment.environment.name=test",
                )
                .args(["--log-format", "json", "--log-level", "info"])
                .arg("--audit-log")
                .arg(at("audit"))
                .stderr(log);
        })
        .await?;
        watched.call(37).await?;
        watched.client.pause_vm(VM).await?;
        let before = watched.get("/metrics").await?;
        let scraped_at = SystemTime::now().duration_since(UNIX_EPOCH);
        let scraped_at = scraped_at.unwrap_or_default().as_nanos();
        // Up to the first samples that were taken after the scrape.
        let mut taken = Vec::new();
        let seen = loop {
            let next = receiver.next().await?;
            let samples = read::samples(&next.request);
            let is_later = u128::from(read::time(&next.request)) > scraped_at;
            taken.push(next);
            if is_later && !samples.is_empty() {
                break samples;
            }
        };
        let after = watched.get("/metrics").await?;
        let standing = standing(&before, &after);
        check!(standing.len() > 80, "samples that stand: {standing:?}");
        let hits = standing
            .iter()
            .find(|(name, _)| name.starts_with("vmprobe_probe_hits_total") && name.contains("id="));
        check_eq!(hits.map(|(_, value)| *value), Some(37.0), "hits of a probe");
        for (name, value) in &standing {
            check_eq!(seen.get(name), Some(value), "the receiver's {name}");
        }
        let scraped = read::scraped(&after);
        check_eq!(
            read::names(&seen),
            read::names(&scraped),
            "names of metrics"
        );

        check_eq!(watched.server.stop()?, Some(0), "the server's exit code");
        taken.extend(receiver.kill().await?);
        for request in &taken {
            let header = &request.headers["x-token"];
            check_eq!(*header, json!(format!("Bearer {SECRET}")), "the header");
            let resource = read::resource(&request.request);
            for (key, value) in [
                ("service.name", json!("vmprobed")),
                ("service.version", json!(env!("CARGO_PKG_VERSION"))),
                ("deployment.environment.name", json!("test")),
            ] {
                check_eq!(resource.get(key), Some(&value), "{key}");
            }
            for key in ["host.name", "service.instance.id"] {
                let known = resource.get(key).and_then(Value::as_str);
                check!(known.is_some_and(|it| !it.is_empty()), "{key}: {known:?}");
            }
        }
        let logs = taken.iter().filter(|it| it.kind == "logs");
        let records: Vec<_> = logs.flat_map(|it| read::records(&it.request)).collect();
        let (mut audited, mut records): (Vec<_>, Vec<_>) = records
            .into_iter()
            .partition(|record| record["target"] == "vmprobe.audit");
        let mut expected = lines(&at("log"))?
            .iter()
            .map(expected)
            .collect::<Result<Vec<_>, _>>()?;
        let by_time = |it: &Value| (it["time"].as_u64(), it.to_string());
        records.sort_by_key(by_time);
        expected.sort_by_key(by_time);
        check_eq!(records, expected, "the records of the log");
        check!(
            records.iter().any(|it| it["vm"] == VM),
            "no process of a VM tells anything in {records:?}"
        );
        audited.sort_by_key(by_time);
        let calls = lines(&at("audit"))?;
        check_eq!(audited.len(), calls.len(), "audited calls");
        for (record, line) in audited.iter().zip(&calls) {
            for (found, key) in [
                (&record["message"], "call"),
                (&record["vm"], "vm"),
                (&record["fields"]["client"], "client"),
                (&record["fields"]["role"], "role"),
                (&record["fields"]["code"], "code"),
            ] {
                check_eq!(*found, line[key], "{key} of {line}");
            }
            let time = record["time"].as_u64().unwrap_or_default() / 1_000_000;
            check_eq!(
                time,
                nanos(&line["time"])? / 1_000_000,
                "the time of {line}"
            );
        }
        pass_with(format!(
            "{} samples, {} records, {} calls",
            standing.len(),
            records.len(),
            calls.len()
        ))
    })
}
