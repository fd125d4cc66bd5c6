//! A real Prometheus.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr};

use super::{BUSY, VM, Watched};
use crate::context::Context;
use crate::http;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass, pass_with, wrong};

pub const SCRAPES: Test = Test {
    name: "a_prometheus_that_scrapes_the_server_answers_with_the_hits_that_there_were",
    ids: &["SV06"],
    needs: Needs::Host,
    run: scrapes,
};

pub const CHECKED: Test = Test {
    name: "promtool_finds_nothing_wrong_with_the_metrics",
    ids: &["SV06"],
    needs: Needs::Host,
    run: checked,
};

/// A Prometheus on a port of its own, killed when this is dropped.
pub struct Prometheus {
    _process: Child,
    // Held open so that its writes don't fail.
    _log: Lines<BufReader<ChildStderr>>,
    _folder: TempDir,
    address: String,
}

impl Prometheus {
    /// Starts one that scrapes this address at this interval in milliseconds. Returns when it
    /// answers.
    ///
    /// # Errors
    /// If it doesn't start.
    pub async fn start(
        cx: &Context,
        target: &str,
        every_ms: u32,
        rules: Option<&Path>,
    ) -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        let config = folder.path().join("prometheus.yml");
        let rules = rules.map_or_else(String::new, |rules| {
            format!("rule_files: ['{}']\n", rules.display())
        });
        let text = format!(
            "global: {{scrape_interval: {every_ms}ms, scrape_timeout: {every_ms}ms, evaluation_interval: 250ms}}\n{rules}\
             scrape_configs:\n- job_name: vmprobe\n  static_configs: [{{targets: ['{target}']}}]\n"
        );
        fs::write(&config, text).map_err(Failure::io("write a configuration"))?;
        let mut process = tokio::process::Command::new(cx.program("prometheus"))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Failure::io("start prometheus"))?;
        let log = process.stderr.take();
        let log = log.ok_or_else(|| wrong!("Prometheus has no log"))?;
        let mut log = BufReader::new(log).lines();
        let (mut address, mut told) = (None, String::new());
        loop {
            let line = log.next_line().await.map_err(Failure::io("read its log"))?;
            let line = line.ok_or_else(|| wrong!("Prometheus has ended: {told}"))?;
            if line.contains("msg=\"Listening on\"") {
                address = line.rsplit("address=").next().map(str::to_owned);
            }
            if line.contains("ready to receive web requests") {
                break;
            }
            told.push_str(&line);
            told.push('\n');
        }
        Ok(Self {
            _process: process,
            _log: log,
            _folder: folder,
            address: address.ok_or_else(|| wrong!("Prometheus listens nowhere: {told}"))?,
        })
    }

    /// Returns the result of a query now, or its error as a failure.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub async fn query(&self, query: &str) -> Result<Value, Failure> {
        let path = format!("/api/v1/query?query={}", http::encoded(query));
        let answer = http::get(&self.address, &path).await?;
        let answer: Value =
            serde_json::from_str(&answer).map_err(|error| wrong!("{error} in {answer}"))?;
        check_eq!(
            answer["status"],
            "success",
            "the answer to {query}: {answer}"
        );
        Ok(answer["data"]["result"].clone())
    }

    /// The rules that it has.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub async fn rules(&self) -> Result<Value, Failure> {
        let answer = http::get(&self.address, "/api/v1/rules").await?;
        serde_json::from_str(&answer).map_err(|error| wrong!("{error} in {answer}"))
    }

    /// The value of a query for one sample, once there is one.
    async fn value(&self, query: &str) -> Result<f64, Failure> {
        loop {
            let result = self.query(query).await?;
            let found: Vec<_> = result.as_array().into_iter().flatten().collect();
            if let [sample] = found[..] {
                let value = sample["value"][1]
                    .as_str()
                    .and_then(|text| text.parse().ok());
                return value.ok_or_else(|| wrong!("{sample} has no value"));
            }
            check!(found.len() < 2, "{query} has several values: {result}");
        }
    }
}

fn scrapes(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut watched = Watched::start(cx).await?;
        let prometheus = Prometheus::start(cx, &watched.metrics, 250, None).await?;
        let of_probe = format!("vmprobe_probe_hits_total{{vm=\"{VM}\",probe=~\".*id=.*\"}}");
        for sum in [11.0, 42.0] {
            let so_far = if sum == 11.0 { 11 } else { 31 };
            watched.call(so_far).await?;
            while prometheus.value(&of_probe).await? != sum {}
        }
        // Ongoing work has a rate.
        let rate = format!("rate(vmprobe_probe_hits_total{{probe=~\"{BUSY}.*\"}}[10s])");
        while prometheus.value(&rate).await? <= 0.0 {}
        let up = prometheus.value("up{job=\"vmprobe\"}").await?;
        check_eq!(up, 1.0, "whether the scrape has succeeded");
        watched.client.disarm_probes(VM).await?;
        watched.client.arm_probes(VM).await?;
        let stops = watched.client.get_vm(VM).await?.stops.unwrap_or_default();
        let count = format!("vmprobe_stop_seconds_count{{vm=\"{VM}\"}}");
        while prometheus.value(&count).await? < stops.count as f64 {}
        let p99 = "histogram_quantile(0.99, vmprobe_stop_seconds_bucket)";
        let p99 = prometheus.value(p99).await?;
        // The upper end of each range is twice that of the range before.
        check!(
            p99 > 0.0 && p99 <= 2e-9 * stops.longest_ns as f64,
            "stops took {p99} s, and the longest {} ns",
            stops.longest_ns
        );
        let units = http::get(&prometheus.address, "/api/v1/targets/metadata").await?;
        check!(
            units.contains("\"unit\":\"seconds\""),
            "no unit is known: {units}"
        );
        pass_with(format!("99 % of stops took {:.0} us at most", p99 * 1e6))
    })
}

fn checked(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut watched = Watched::start(cx).await?;
        let _stream = watched.client.events(VM, Vec::new()).await?;
        watched.call(1).await?;
        let metrics = watched.get("/metrics").await?;
        let mut promtool = Command::new(cx.program("promtool"))
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Failure::io("start promtool"))?;
        let input = promtool.stdin.take();
        let mut input = input.ok_or_else(|| wrong!("promtool has no input"))?;
        let written = input.write_all(metrics.as_bytes());
        written.map_err(Failure::io("write to promtool"))?;
        drop(input);
        let output = promtool.wait_with_output();
        let output = output.map_err(Failure::io("wait for promtool"))?;
        let said = [output.stdout, output.stderr].concat();
        check!(
            output.status.success() && said.is_empty(),
            "promtool says: {}",
            String::from_utf8_lossy(&said)
        );
        pass()
    })
}
