//! Events as log records.

use std::sync::Arc;

use serde_json::Value as Json;
use vmprobe_otlp::proto::collector::logs::v1::ExportLogsServiceRequest;
use vmprobe_otlp::proto::common::v1::{InstrumentationScope, KeyValue};
use vmprobe_otlp::proto::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use vmprobe_otlp::proto::resource::v1::Resource;
use vmprobe_otlp::{attribute, json, resource, text, unix_nanos};

use crate::Record;

/// The prefix of an event's attributes.
const OURS: &str = "vmprobe";

/// Returns a request with these records, grouped by host.
pub(super) fn of(records: &[Arc<Record>]) -> ExportLogsServiceRequest {
    let mut hosts: Vec<(Arc<str>, Vec<LogRecord>)> = Vec::new();
    let now = unix_nanos(std::time::SystemTime::now());
    for record in records {
        let log = converted(record, now);
        match hosts.iter_mut().find(|(host, _)| *host == record.host) {
            Some((_, logs)) => logs.push(log),
            None => hosts.push((Arc::clone(&record.host), vec![log])),
        }
    }
    let hosts = hosts.into_iter().map(|(host, logs)| ResourceLogs {
        resource: Some(exporter(&host)),
        scope_logs: vec![ScopeLogs {
            scope: Some(InstrumentationScope {
                name: "vmprobe.events".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            }),
            log_records: logs,
            ..ScopeLogs::default()
        }],
        ..ResourceLogs::default()
    });
    ExportLogsServiceRequest {
        resource_logs: hosts.collect(),
    }
}

/// Returns the resource that stands for the observer of a host's events.
fn exporter(host: &str) -> Resource {
    resource("vmprobe", env!("CARGO_PKG_VERSION"), host, Some(host))
}

/// Converts an event. Its name is that of the probe, and its attributes are the fields of its JSON; a field of an inner
/// object has the names of both. Fields that OpenTelemetry's conventions name ("Process", "Thread", "CPU") have that
/// name, too.
fn converted(record: &Record, now: u64) -> LogRecord {
    let event = &record.event;
    let mut attributes = vec![
        attribute("vmprobe.vm", text(&*record.vm)),
        attribute("cpu.logical_number", json(event.vcpu.into())),
    ];
    if let Some(task) = &event.context {
        attributes.extend([
            attribute("process.pid", json(task.tgid.into())),
            attribute("thread.id", json(task.pid.into())),
            attribute("thread.name", text(task.comm.clone())),
        ]);
    }
    // A record always serializes.
    let fields = serde_json::to_value(event).unwrap_or_default();
    flatten(OURS.to_owned(), fields, &mut attributes);
    LogRecord {
        time_unix_nano: record.unix_ns,
        observed_time_unix_nano: now,
        severity_number: SeverityNumber::Info.into(),
        event_name: event.probe.clone(),
        body: Some(text(format!("{}: {}", event.probe, place(event)))),
        attributes,
        ..LogRecord::default()
    }
}

fn place(event: &vmprobe_trace_formats::Record) -> String {
    let place = &event.place;
    let symbol = place.symbol.clone();
    symbol.unwrap_or_else(|| format!("{:#x}", place.address))
}

/// Makes the fields of an object attributes of their own. Leaves null out.
fn flatten(name: String, value: Json, to: &mut Vec<KeyValue>) {
    match value {
        Json::Null => {}
        Json::Object(fields) => {
            for (field, value) in fields {
                flatten(format!("{name}.{field}"), value, to);
            }
        }
        other => to.push(attribute(name, json(other))),
    }
}

#[cfg(test)]
mod tests {
    use vmprobe_otlp::proto::common::v1::AnyValue;

    use super::*;
    use crate::samples;

    fn value<'a>(log: &'a LogRecord, key: &str) -> Option<&'a AnyValue> {
        let mut found = log.attributes.iter().filter(|it| it.key == key);
        let value = found.next()?.value.as_ref();
        assert!(found.next().is_none(), "{key} is there twice");
        value
    }

    #[test]
    fn an_event_has_its_time_its_probe_s_name_and_its_values_with_their_types() {
        let log = converted(&samples::returned(), 7);
        assert_eq!(log.time_unix_nano, 1_795_785_461_023_320_114);
        assert_eq!((log.observed_time_unix_nano, &*log.event_name), (7, "read"));
        assert_eq!(log.body, Some(text("read: vfs_read+0x5")));
        for (key, expected) in [
            ("vmprobe.vm", text("web-1")),
            ("vmprobe.probe", text("read")),
            ("vmprobe.kind", text("return")),
            ("cpu.logical_number", json(1.into())),
            ("process.pid", json(60.into())),
            ("thread.id", json(61.into())),
            ("thread.name", text("cat")),
            ("vmprobe.arguments.dfd", json((-100).into())),
            ("vmprobe.arguments.count", text(u64::MAX.to_string())),
            ("vmprobe.arguments.name", text("/etc/passwd")),
            ("vmprobe.registers.rip", text("0xffffffff8130206a")),
            ("vmprobe.return.duration_ns", json(500_000.into())),
            ("vmprobe.place.symbol", text("vfs_read+0x5")),
        ] {
            assert_eq!(value(&log, key), Some(&expected), "{key}");
        }
        assert_eq!(value(&log, "vmprobe.arguments.gone"), None);
        let stack = serde_json::json!([
            {"address": "0xffffffff8130206a", "symbol": "ksys_read+0x6a"},
            {"address": "0x401000", "symbol": null},
        ]);
        let Some(found) = value(&log, "vmprobe.stack") else {
            panic!("there is no stack");
        };
        assert_eq!(*found, json(stack));
    }

    #[test]
    fn events_of_each_host_are_those_of_a_resource() {
        let records = [("a", 1), ("b", 2), ("a", 3)];
        let records = records.map(|(host, time)| Arc::new(samples::of(host, "v", time)));
        let request = of(&records);
        let found: Vec<_> = request
            .resource_logs
            .iter()
            .map(|it| {
                let logs = &it.scope_logs[0].log_records;
                let times: Vec<_> = logs.iter().map(|log| log.time_unix_nano).collect();
                let mut of = it.resource.as_ref().unwrap().attributes.iter();
                let host = of.find(|it| it.key == "host.name").unwrap();
                (host.value.clone().unwrap(), times)
            })
            .collect();
        assert_eq!(found, [(text("a"), vec![1, 3]), (text("b"), vec![2])]);
    }
}
