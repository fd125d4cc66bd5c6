//! A store that metrics are sent to by HTTP.

use std::net::TcpListener;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::read;
use crate::context::Context;
use crate::http;
use crate::test::{Failure, Needs, Test, TestResult, check_eq, pass_with, wrong};
use crate::watched::scrape::value as value_of;
use crate::watched::{VM, Watched};

pub const STORED: Test = Test {
    name: "a_victoriametrics_that_metrics_are_sent_to_has_them_by_the_names_of_a_scrape",
    ids: &["SV06"],
    needs: Needs::Host,
    run: stored,
};

/// A `VictoriaMetrics` on a port of its own, killed when this is dropped.
struct Store {
    _process: Child,
    _folder: TempDir,
    address: String,
}

impl Store {
    fn start(cx: &Context) -> Result<Self, Failure> {
        let folder = TempDir::new().map_err(Failure::io("make a folder"))?;
        // The store doesn't say which free port it has taken.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let address = free.map_err(Failure::io("find a free port"))?.to_string();
        let process = Command::new(cx.program("victoria-metrics"))
            .arg(format!("-httpListenAddr={address}"))
            .arg(format!("-storageDataPath={}", folder.path().display()))
            .arg("-opentelemetry.usePrometheusNaming")
            // Queries also see the latest samples.
            .arg("-search.latencyOffset=0s")
            .args(["-loggerLevel=ERROR", "-memory.allowedBytes=64MB"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(Failure::io("start victoria-metrics"))?;
        Ok(Self {
            _process: process,
            _folder: folder,
            address,
        })
    }

    /// The series that a query finds now, each with its labels and its last value.
    async fn query(&self, query: &str) -> Result<Vec<Value>, Failure> {
        let query = http::encoded(query);
        let path = format!("/api/v1/query?nocache=1&query={query}");
        let answer = http::get(&self.address, &path).await?;
        let answer: Value =
            serde_json::from_str(&answer).map_err(|error| wrong!("{error} in {answer}"))?;
        let found = answer["data"]["result"].as_array();
        found.cloned().ok_or_else(|| wrong!("it answers {answer}"))
    }
}

fn stored(cx: &Context) -> TestResult {
    cx.block_on(async {
        let store = Store::start(cx)?;
        // The server may be up before the store.
        let mut watched = Watched::start_with(cx, |command| {
            let url = format!("http://{}/opentelemetry", store.address);
            command
                .args(["--otlp", &url, "--otlp-protocol", "http/protobuf"])
                .args(["--otlp-signals", "metrics", "--otlp-interval", "200"]);
        })
        .await?;
        watched.call(42).await?;
        let up = "vmprobe_otlp_up{signal=\"metrics\"}";
        while value_of(&watched.get("/metrics").await?, up)? != 1.0 {}
        let of_probe = format!("vmprobe_probe_hits_total{{vm=\"{VM}\",probe=~\".*id=.*\"}}");
        let found = loop {
            let found = store.query(&of_probe).await?;
            let value = |it: &Value| it["value"][1].as_str().map(str::to_owned);
            if found.first().and_then(value).as_deref() == Some("42") {
                break found;
            }
        };
        let version = &found[0]["metric"]["service.version"];
        let version = match version {
            Value::Null => &found[0]["metric"]["service_version"],
            version => version,
        };
        check_eq!(*version, env!("CARGO_PKG_VERSION"), "the server's version");
        let scraped = watched.get("/metrics").await?;
        let scraped = read::scraped(&scraped);
        let names = read::names(&scraped);
        for name in &names {
            // The store shows new samples after about a second.
            while store.query(name).await?.is_empty() {}
        }
        check_eq!(watched.server.stop()?, Some(0), "the server's exit code");
        pass_with(format!("{} names", names.len()))
    })
}
