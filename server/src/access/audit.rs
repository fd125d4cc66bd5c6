//! The log of what clients have changed, one line of JSON for each call.
//!
//! ```json
//! {"time":"2026-11-27T10:15:30.123Z","client":"alice","role":"probe","call":"ProbeService/RegisterProbes","vm":"web-1","code":0}
//! ```
//!
//! It has no arguments of calls, and so no secrets. `code` is gRPC's code; a call that its client has cut off has none.
//! If the server's log is sent to a receiver, these calls are sent too, with or without a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use super::caller::Caller;
use crate::log::{Record, Records};

/// The log target of the calls, where they are sent elsewhere.
pub const TARGET: &str = "vmprobe.audit";

/// The log can't be written.
#[derive(Debug, Error)]
#[error("the audit log {file} can't be opened: {cause}")]
pub struct AuditError {
    /// Its file.
    pub file: PathBuf,
    /// The system's error.
    pub cause: io::Error,
}

/// A log that lines are added to. Clones share it.
#[derive(Clone, Debug)]
pub struct AuditLog {
    file: Option<Arc<Mutex<File>>>,
    records: Option<Records>,
}

/// One line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time: String,
    client: &'a str,
    role: &'static str,
    call: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vm: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
}

impl AuditLog {
    /// Opens its file, or makes the file, which only its owner can read. What is added goes to `records` as well.
    /// Returns `None` if there is neither.
    ///
    /// # Errors
    /// The file can't be opened.
    pub fn new(file: Option<&Path>, records: Option<Records>) -> Result<Option<Self>, AuditError> {
        let file = file.map(open).transpose()?;
        let is_wanted = file.is_some() || records.is_some();
        Ok(is_wanted.then_some(Self { file, records }))
    }

    /// Adds a call, with the VM that it named.
    pub fn add(&self, caller: &Caller, call: &str, vm: Option<&str>, code: Option<i32>) {
        let now = SystemTime::now();
        let line = Line {
            time: humantime::format_rfc3339_millis(now).to_string(),
            client: &caller.name,
            role: caller.role.name(),
            call,
            vm,
            code,
        };
        if let Some(records) = &self.records {
            records.add(line.record(now));
        }
        let Some(file) = &self.file else {
            return;
        };
        // Strings and a number always serialize.
        let mut line = serde_json::to_string(&line).unwrap_or_default();
        line.push('\n');
        // The line is written at once, so that lines of several processes don't mix.
        if let Err(error) = file.lock().write_all(line.as_bytes()) {
            tracing::error!("the audit log can't be written: {error}; not in it: {line}");
        }
    }
}

impl Line<'_> {
    fn record(&self, time: SystemTime) -> Record {
        let fields = [
            ("client", Some(Value::from(self.client))),
            ("role", Some(Value::from(self.role))),
            ("code", self.code.map(Value::from)),
        ];
        let fields = fields.into_iter();
        let fields = fields.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Record {
            time,
            level: "INFO".into(),
            target: TARGET.into(),
            vm: self.vm.map(str::to_owned),
            message: self.call.to_owned(),
            fields: fields.collect(),
        }
    }
}

fn open(file: &Path) -> Result<Arc<Mutex<File>>, AuditError> {
    let mut options = OpenOptions::new();
    let opened = options.append(true).create(true).mode(0o600).open(file);
    let opened = opened.map_err(|cause| AuditError {
        file: file.to_owned(),
        cause,
    })?;
    Ok(Arc::new(Mutex::new(opened)))
}
