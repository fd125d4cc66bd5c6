//! Sending the log.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use vmprobe_otlp::proto::collector::logs::v1::ExportLogsServiceRequest;
use vmprobe_otlp::proto::common::v1::InstrumentationScope;
use vmprobe_otlp::proto::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use vmprobe_otlp::proto::resource::v1::Resource;
use vmprobe_otlp::{Backoff, SendError, attribute, json, text, unix_nanos};

use super::receiver::Receiver;
use super::task::{FLUSH, Stop};
use crate::log::{Record, Records};

/// The most records in a request, and how long fewer records wait for others.
const BATCH: usize = 512;
const DELAY: Duration = Duration::from_secs(1);
/// The approximate most bytes in a request: receivers take 4 MiB.
const BATCH_BYTES: usize = 1 << 20;

/// Sends records as they come, and the rest at the end.
pub async fn run(receiver: Receiver, resource: Resource, records: Records, mut stop: Stop) {
    let mut logs = Logs {
        receiver,
        resource,
        records,
        under_way: Vec::new(),
        backoff: Backoff::default(),
    };
    tokio::select! {
        _ = &mut stop.stop => {}
        () = logs.send_all() => {}
    }
    let _what_is_left_is_told = timeout(FLUSH, logs.flush()).await;
    logs.give_up();
}

struct Logs {
    receiver: Receiver,
    resource: Resource,
    records: Records,
    /// Records that were taken from the queue and aren't known to have arrived. They outlast a
    /// request that is cut off.
    under_way: Vec<Record>,
    backoff: Backoff,
}

impl Logs {
    /// Never returns.
    async fn send_all(&mut self) {
        loop {
            self.records.wait_for(1).await;
            let _too_few_go_as_well = timeout(DELAY, self.records.wait_for(BATCH)).await;
            self.send_what_there_is().await;
        }
    }

    async fn flush(&mut self) {
        self.backoff.reset();
        self.send_what_there_is().await;
    }

    /// Sends the waiting records. Returns when no record waits.
    async fn send_what_there_is(&mut self) {
        loop {
            if self.under_way.is_empty() {
                self.under_way = self.records.take(BATCH, BATCH_BYTES);
            }
            if self.under_way.is_empty() {
                return;
            }
            let request = request(&self.resource, &self.under_way);
            let count = self.under_way.len() as u64;
            let elsewhere = self.records.dropped();
            match self.receiver.send(request, count, elsewhere).await {
                Err(SendError::Away { again, .. }) => {
                    sleep(self.backoff.next(again)).await;
                }
                Ok(()) | Err(SendError::Refused { .. }) => {
                    self.under_way.clear();
                    self.backoff.reset();
                }
            }
        }
    }

    fn give_up(&mut self) {
        let left = self.under_way.len() + self.records.waiting();
        self.receiver.give_up(left as u64);
        self.receiver.tell_left(left as u64);
    }
}

/// Makes a request with these records. Each part of the program is a scope of its own.
fn request(resource: &Resource, records: &[Record]) -> ExportLogsServiceRequest {
    let mut scopes: Vec<ScopeLogs> = Vec::new();
    for record in records {
        let is_of = |scope: &ScopeLogs| {
            let scope = scope.scope.as_ref();
            scope.is_some_and(|scope| scope.name == record.target)
        };
        let found = scopes.iter().position(is_of);
        let index = found.unwrap_or_else(|| {
            scopes.push(ScopeLogs {
                scope: Some(InstrumentationScope {
                    name: record.target.clone().into_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    ..InstrumentationScope::default()
                }),
                ..ScopeLogs::default()
            });
            scopes.len() - 1
        });
        scopes[index].log_records.push(converted(record));
    }
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource.clone()),
            scope_logs: scopes,
            ..ResourceLogs::default()
        }],
    }
}

fn converted(record: &Record) -> LogRecord {
    let vm = record
        .vm
        .iter()
        .map(|vm| attribute("vmprobe.vm", text(vm.clone())));
    let fields = record.fields.iter();
    let fields = fields.map(|(name, value)| attribute(name.clone(), json(value.clone())));
    let time = unix_nanos(record.time);
    LogRecord {
        time_unix_nano: time,
        observed_time_unix_nano: time,
        severity_number: severity(&record.level).into(),
        severity_text: record.level.clone().into_owned(),
        body: Some(text(record.message.clone())),
        attributes: vm.chain(fields).collect(),
        ..LogRecord::default()
    }
}

/// Returns a severity of OpenTelemetry's log data model ("Severity Fields").
fn severity(level: &str) -> SeverityNumber {
    match level {
        "TRACE" => SeverityNumber::Trace,
        "DEBUG" => SeverityNumber::Debug,
        "INFO" => SeverityNumber::Info,
        "WARN" => SeverityNumber::Warn,
        "ERROR" => SeverityNumber::Error,
        _ => SeverityNumber::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use serde_json::{Value, json};

    use super::*;

    fn record(target: &'static str, fields: Value) -> Record {
        let Value::Object(fields) = fields else {
            panic!("fields are an object");
        };
        Record {
            time: UNIX_EPOCH + Duration::from_micros(7),
            level: "WARN".into(),
            target: target.into(),
            vm: Some("web-1".to_owned()),
            message: "lost".to_owned(),
            fields,
        }
    }

    #[test]
    fn a_record_keeps_its_time_its_level_its_vm_and_the_types_of_its_fields() {
        let log = converted(&record("t", json!({"lost": 7, "why": "full"})));
        assert_eq!((log.time_unix_nano, log.severity_number), (7000, 13));
        assert_eq!(log.body, Some(text("lost")));
        let expected = [
            attribute("vmprobe.vm", text("web-1")),
            attribute("lost", vmprobe_otlp::json(json!(7))),
            attribute("why", text("full")),
        ];
        assert_eq!(log.attributes, expected);
    }

    #[test]
    fn each_part_of_the_program_is_a_scope() {
        let records = ["a", "b", "a"].map(|target| record(target, json!({})));
        let request = request(&Resource::default(), &records);
        let scopes = &request.resource_logs[0].scope_logs;
        let counts: Vec<_> = scopes
            .iter()
            .map(|it| (&*it.scope.as_ref().unwrap().name, it.log_records.len()))
            .collect();
        assert_eq!(counts, [("a", 2), ("b", 1)]);
    }
}
