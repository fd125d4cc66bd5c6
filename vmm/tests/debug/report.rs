//! Telling `make test` how a test ended, and where it ran.

use std::{fs::OpenOptions, io::Write, thread};

use serde_json::json;

/// The file for results, one line of JSON each; none are written without it.
const RESULTS: &str = "VMPROBE_RESULTS";
/// Where this runs, by its name in results: `host` if it isn't said.
const PLACE: &str = "VMPROBE_PLACE";

/// A test under way. It is told when this is dropped.
#[derive(Debug)]
pub struct Report {
    name: &'static str,
    ids: &'static [&'static str],
    skipped: Option<String>,
}

/// A test of this name that needs a KVM begins; none where there is none.
pub fn on_kvm(name: &'static str) -> Option<Report> {
    begin(name, &[])
}

/// A test of this name begins that proves what watchpoints do, row KP18; none
/// where this KVM doesn't report them.
pub fn on_watchpoints(name: &'static str) -> Option<Report> {
    let report = begin(name, &["KP18"])?;
    let guest = vmm_doctor::examine().guest;
    let check = guest.and_then(|guest| guest.watchpoint);
    if check.as_ref().is_some_and(|check| check.ok) {
        return Some(report);
    }
    let detail = check.map_or_else(String::new, |check| format!(": {}", check.detail));
    report.skip(format!(
        "this KVM has no watchpoints in kernel mode{detail}"
    ));
    None
}

fn begin(name: &'static str, ids: &'static [&'static str]) -> Option<Report> {
    let report = Report {
        name,
        ids,
        skipped: None,
    };
    if std::path::Path::new("/dev/kvm").exists() {
        return Some(report);
    }
    report.skip("there is no /dev/kvm".into());
    None
}

impl Report {
    /// Ends it without a verdict.
    pub fn skip(mut self, reason: String) {
        println!("skipped: {reason}");
        self.skipped = Some(reason);
    }

    fn tell(&self) -> std::io::Result<()> {
        let Some(path) = std::env::var_os(RESULTS) else {
            return Ok(());
        };
        let (status, note) = match (thread::panicking(), &self.skipped) {
            (true, _) => ("fail", "see its output"),
            (false, Some(reason)) => ("skip", reason.as_str()),
            (false, None) => ("pass", ""),
        };
        let record = json!({
            "name": self.name,
            "ids": self.ids,
            "status": status,
            "where": std::env::var(PLACE).unwrap_or_else(|_| "host".into()),
            "note": note,
        });
        // In one write, as tests run beside each other.
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(format!("{record}\n").as_bytes())
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let told = self.tell();
        assert!(
            told.is_ok() || thread::panicking(),
            "can't write the results: {told:?}"
        );
    }
}
