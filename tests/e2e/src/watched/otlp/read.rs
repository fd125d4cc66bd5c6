//! What is in requests of OpenTelemetry's protocol.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Samples by their names in Prometheus: `name{label="value",…}`, with the labels in order.
pub type Samples = BTreeMap<String, f64>;

/// Returns the lists under these keys, each inside the one before.
fn all<'v>(value: &'v Value, keys: &[&str]) -> Vec<&'v Value> {
    let mut found = vec![value];
    for key in keys {
        let next = found.into_iter().flat_map(|it| it[*key].as_array());
        found = next.flatten().collect();
    }
    found
}

/// A value of an attribute. Numbers of 64 bits are texts in the protocol's JSON.
fn plain(value: &Value) -> Value {
    let kinds = value.as_object().into_iter().flatten();
    let mut plain = kinds.map(|(kind, value)| match (&**kind, value.as_str()) {
        ("intValue", Some(text)) => json!(text.parse::<i64>().ok()),
        _ => value.clone(),
    });
    plain.next().unwrap_or(Value::Null)
}

fn attributes(of: &Value) -> Map<String, Value> {
    let found = of["attributes"].as_array().into_iter().flatten();
    let pair = |it: &Value| {
        let key = it["key"].as_str().unwrap_or_default();
        (key.to_owned(), plain(&it["value"]))
    };
    found.map(pair).collect()
}

/// The attributes of the sender of a request.
pub fn resource(request: &Value) -> Map<String, Value> {
    let kinds = ["resourceMetrics", "resourceLogs"];
    let mut found = kinds.iter().flat_map(|kind| all(request, &[kind]));
    found
        .next()
        .map(|it| attributes(&it["resource"]))
        .unwrap_or_default()
}

/// When the samples of a request were taken, in nanoseconds since 1970.
pub fn time(request: &Value) -> u64 {
    let metrics = all(request, &["resourceMetrics", "scopeMetrics", "metrics"]);
    let points = metrics
        .into_iter()
        .flat_map(|metric| all(&metric["gauge"], &["dataPoints"]));
    let times = points.filter_map(|point| point["timeUnixNano"].as_str()?.parse().ok());
    times.max().unwrap_or(0)
}

fn number(value: &Value) -> f64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    text.or_else(|| value.as_f64()).unwrap_or(f64::NAN)
}

/// The samples of a request, with the names that the specification prescribes for Prometheus: with the unit, and with
/// the suffixes of a counter or a histogram.
pub fn samples(request: &Value) -> Samples {
    let mut samples = Samples::new();
    for metric in all(request, &["resourceMetrics", "scopeMetrics", "metrics"]) {
        let mut name = metric["name"].as_str().unwrap_or_default().to_owned();
        match metric["unit"].as_str() {
            Some("s") => name.push_str("_seconds"),
            Some("By") => name.push_str("_bytes"),
            _ => {}
        }
        if metric["sum"]["isMonotonic"] == true {
            name.push_str("_total");
        }
        for kind in ["gauge", "sum"] {
            for point in all(&metric[kind], &["dataPoints"]) {
                let value = number(&point["asDouble"]);
                samples.insert(sample(&name, attributes(point)), value);
            }
        }
        for point in all(&metric["histogram"], &["dataPoints"]) {
            let labels = attributes(point);
            let ends = point["explicitBounds"].as_array().into_iter().flatten();
            let ends = ends.map(|end| end.as_f64().unwrap_or(f64::NAN).to_string());
            let mut sum = 0.0;
            for (count, end) in all(point, &["bucketCounts"])
                .into_iter()
                .zip(ends.chain(["+Inf".to_owned()]))
            {
                sum += number(count);
                let mut labels = labels.clone();
                labels.insert("le".to_owned(), end.into());
                samples.insert(sample(&format!("{name}_bucket"), labels), sum);
            }
            for (end, key) in [("sum", "sum"), ("count", "count")] {
                let name = format!("{name}_{end}");
                samples.insert(sample(&name, labels.clone()), number(&point[key]));
            }
        }
    }
    samples
}

fn sample(name: &str, labels: Map<String, Value>) -> String {
    let labels = labels.into_iter();
    let labels: BTreeMap<_, _> = labels
        .map(|(key, value)| (key, value.as_str().unwrap_or_default().to_owned()))
        .collect();
    format!("{name}{labels:?}")
}

/// The samples of a scrape in the format of Prometheus.
pub fn scraped(text: &str) -> Samples {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}')?;
        let mut found = Map::new();
        for label in labels.split("\",").filter(|label| !label.is_empty()) {
            let (key, text) = label.split_once("=\"")?;
            let text = text.strip_suffix('"').unwrap_or(text);
            // The escapes of labels are a subset of JSON's.
            let text: String = serde_json::from_str(&format!("\"{text}\"")).ok()?;
            let text = match key {
                "le" => text.parse::<f64>().ok().filter(|it| it.is_finite()),
                _ => None,
            }
            .map_or(text, |end| end.to_string());
            found.insert(key.to_owned(), text.into());
        }
        Some((sample(name, found), value.parse().ok()?))
    };
    lines.filter_map(read).collect()
}

/// All records of a request, each as the log's JSON has it, with its time in nanoseconds.
pub fn records(request: &Value) -> Vec<Value> {
    let mut records = Vec::new();
    for scope in all(request, &["resourceLogs", "scopeLogs"]) {
        for log in all(scope, &["logRecords"]) {
            let mut fields = attributes(log);
            let vm = fields.remove("vmprobe.vm");
            records.push(json!({
                "time": log["timeUnixNano"].as_str().and_then(|it| it.parse::<u64>().ok()),
                "level": log["severityText"],
                "severity": log["severityNumber"],
                "target": scope["scope"]["name"],
                "vm": vm,
                "message": plain(&log["body"]),
                "fields": fields,
            }));
        }
    }
    records
}

/// The names in a set of samples.
pub fn names(samples: &Samples) -> BTreeSet<&str> {
    let names = samples.keys();
    names.filter_map(|name| name.split('{').next()).collect()
}
