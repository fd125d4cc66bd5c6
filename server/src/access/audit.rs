//! The log of what clients have changed: a line of JSON a call.
//!
//! ```json
//! {"time":"2026-11-27T10:15:30.123Z","client":"alice","role":"probe","call":"ProbeService/RegisterProbes","vm":"web-1","code":0}
//! ```
//!
//! It has no arguments of calls, and so no secrets. `code` is gRPC's; a call that its client has cut off has none.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::Serialize;
use thiserror::Error;

use super::caller::Caller;

/// The log can't be written.
#[derive(Debug, Error)]
#[error("the audit log {file} can't be opened: {cause}")]
pub struct AuditError {
    /// Its file.
    pub file: PathBuf,
    /// What the system said.
    pub cause: io::Error,
}

/// A log that lines are added to. Clones are the same one.
#[derive(Clone, Debug)]
pub struct AuditLog(Arc<Mutex<File>>);

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
    /// Opens it, or makes it for its owner alone to read.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn open(file: &Path) -> Result<Self, AuditError> {
        let mut options = OpenOptions::new();
        let opened = options.append(true).create(true).mode(0o600).open(file);
        let opened = opened.map_err(|cause| AuditError {
            file: file.to_owned(),
            cause,
        })?;
        Ok(Self(Arc::new(Mutex::new(opened))))
    }

    /// Adds a call, with the VM that it named.
    pub fn add(&self, caller: &Caller, call: &str, vm: Option<&str>, code: Option<i32>) {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let line = Line {
            time,
            client: &caller.name,
            role: caller.role.name(),
            call,
            vm,
            code,
        };
        // Strings and a number always serialize.
        let mut line = serde_json::to_string(&line).unwrap_or_default();
        line.push('\n');
        // One write: lines of several processes don't mix.
        if let Err(error) = self.0.lock().write_all(line.as_bytes()) {
            tracing::error!("the audit log can't be written: {error}; not in it: {line}");
        }
    }
}
