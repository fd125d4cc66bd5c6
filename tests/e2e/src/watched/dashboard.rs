//! The dashboard, the rules and the table of metrics that come with the product, compared with a real scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::prometheus::Prometheus;
use super::{VM, Watched};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const EXPRESSIONS: Test = Test {
    name: "a_prometheus_takes_each_expression_of_the_dashboard_and_the_rules_and_alerts_by_them",
    ids: &["SV06"],
    needs: Needs::Host,
    run: expressions,
};

pub const DOCUMENTED: Test = Test {
    name: "the_table_of_metrics_is_what_a_server_tells",
    ids: &["SV06"],
    needs: Needs::Tiny,
    run: documented,
};

const DASHBOARD: &str = include_str!("../../../../deploy/grafana/vmprobe.json");
const RULES: &str = include_str!("../../../../deploy/prometheus/vmprobe.rules.yml");
const DOCUMENT: &str = include_str!("../../../../docs/operations.md");
/// The values that Grafana substitutes for its variables.
const VARIABLES: [(&str, &str); 3] = [
    ("$__rate_interval", "1m"),
    ("$vm", ".*"),
    ("$job", "vmprobe"),
];
/// Prefixes of our metrics' names.
const OURS: [&str; 2] = ["vmprobe_", "process_"];

/// Collects all texts under this key.
fn texts<'v>(value: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(key).and_then(Value::as_str));
            fields.values().for_each(|value| texts(value, key, found));
        }
        Value::Array(values) => values.iter().for_each(|value| texts(value, key, found)),
        _ => {}
    }
}

/// The expressions of the dashboard's panels, as Grafana asks for them.
fn of_dashboard() -> Result<Vec<String>, Failure> {
    let dashboard: Value =
        serde_json::from_str(DASHBOARD).map_err(|error| wrong!("the dashboard: {error}"))?;
    let panels = dashboard["panels"].as_array().map_or(0, Vec::len);
    let numbers = dashboard["panels"].as_array().into_iter().flatten();
    let ids: BTreeSet<_> = numbers.filter_map(|panel| panel["id"].as_u64()).collect();
    check_eq!(ids.len(), panels, "numbers of panels");
    let mut found = Vec::new();
    texts(&dashboard, "expr", &mut found);
    let asked = found.into_iter().map(|expression| {
        let replace =
            |text: String, (variable, value): &(&str, &str)| text.replace(variable, value);
        VARIABLES.iter().fold(expression.to_owned(), replace)
    });
    Ok(asked.collect())
}

/// The names of our metrics in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| OURS.iter().any(|ours| word.starts_with(ours)))
}

/// A metric as a scrape in the format of Prometheus describes it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Told {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

fn told(metrics: &str) -> BTreeMap<String, Told> {
    let mut all: BTreeMap<String, Told> = BTreeMap::new();
    for line in metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(help)) => {
                all.entry(name.to_owned()).or_default().help = help.to_owned();
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                all.entry(name.to_owned()).or_default().kind = kind.to_owned();
            }
            _ => {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let ends = ["", "_bucket", "_sum", "_count"];
                let mut bases = ends.iter().filter_map(|end| name.strip_suffix(end));
                let Some(metric) = bases.find(|base| all.contains_key(*base)) else {
                    continue;
                };
                let labels = line
                    .split_once('{')
                    .and_then(|(_, rest)| rest.rsplit_once('}'));
                let labels = labels.map_or("", |(labels, _)| labels);
                let found = labels
                    .split("\",")
                    .filter_map(|label| label.split_once("=\""));
                let found = found
                    .map(|(key, _)| key.to_owned())
                    .filter(|key| key != "le");
                let found: Vec<_> = found.collect();
                all.entry(metric.to_owned())
                    .or_default()
                    .labels
                    .extend(found);
            }
        }
    }
    all
}

/// Returns the metrics of a server that has done everything that is counted.
async fn scraped(cx: &Context) -> Result<(Watched, BTreeMap<String, Told>), Failure> {
    let mut watched = Watched::start_with(cx, |command| {
        // No receiver listens there; that is counted, too.
        command.args(["--otlp", "http://127.0.0.1:1"]);
    })
    .await?;
    watched.call(3).await?;
    let metrics = watched.get("/metrics").await?;
    Ok((watched, told(&metrics)))
}

fn expressions(cx: &Context) -> TestResult {
    let rules = std::env::temp_dir().join("vmprobe.rules.yml");
    std::fs::write(&rules, RULES).map_err(Failure::io("write the rules"))?;
    let checked = Command::new(cx.program("promtool"))
        .args(["check", "rules"])
        .arg(&rules)
        .output()
        .map_err(Failure::io("run promtool"))?;
    let said = String::from_utf8_lossy(&checked.stderr);
    check!(
        checked.status.success(),
        "promtool says of the rules: {said}"
    );
    cx.block_on(async {
        let (watched, metrics) = scraped(cx).await?;
        // An interval longer than the server waits for a VM.
        let prometheus = Prometheus::start(cx, &watched.metrics, 3000, Some(&rules)).await?;
        let known = prometheus.rules().await?;
        let mut of_rules = Vec::new();
        texts(&known, "query", &mut of_rules);
        check!(of_rules.len() > 5, "Prometheus knows these rules: {known}");
        let asked = of_dashboard()?;
        check!(asked.len() > 20, "the dashboard asks for {asked:?}");
        for expression in asked.iter().map(String::as_str).chain(of_rules) {
            prometheus.query(expression).await?;
            for name in names(expression) {
                let ends = ["", "_bucket", "_sum", "_count"];
                let mut bases = ends.iter().filter_map(|end| name.strip_suffix(end));
                check!(
                    bases.any(|base| metrics.contains_key(base)),
                    "{expression} names {name}, which no server tells"
                );
            }
        }
        // A VM that hangs raises an alert.
        watched.server.vm_process(VM)?.stop()?;
        let alert = "ALERTS{alertname=\"VmprobeVmDown\",alertstate=\"pending\"}";
        while prometheus
            .query(alert)
            .await?
            .as_array()
            .is_none_or(Vec::is_empty)
        {}
        watched.server.vm_process(VM)?.signal(libc::SIGCONT)?;
        pass_with(format!("{} expressions of the dashboard", asked.len()))
    })
}

/// Returns the rows of the document's table.
fn rows(metrics: &BTreeMap<String, Told>) -> Vec<String> {
    let row = |(name, told): (&String, &Told)| {
        let labels: Vec<_> = told
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let Told { kind, help, .. } = told;
        format!("| `{name}` | {kind} | {} | {help} |", labels.join(", "))
    };
    metrics.iter().map(row).collect()
}

fn documented(cx: &Context) -> TestResult {
    cx.block_on(async {
        let (_watched, metrics) = scraped(cx).await?;
        let expected = rows(&metrics);
        let is_row = |line: &&str| {
            OURS.iter()
                .any(|ours| line.starts_with(&format!("| `{ours}")))
        };
        let found: Vec<&str> = DOCUMENT.lines().filter(is_row).collect();
        if found != expected {
            return Err(wrong!(
                "the table of docs/operations.md isn't what a server tells, which is\n{}",
                expected.join("\n")
            ));
        }
        pass_with(format!("{} metrics", found.len()))
    })
}
