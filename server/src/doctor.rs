//! The host's examination, for people and for programs.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Once;
use std::thread;

use vmprobe_proto::v1::GetHostResponse;

/// Examines the host for a client. Blocks, for some ten seconds if guests hang.
pub fn describe_host() -> GetHostResponse {
    let report = vmm_doctor::examine();
    GetHostResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        runs_linux: report.runs_linux,
        // A report consists of strings and numbers, which JSON can always represent.
        report_json: serde_json::to_string(&report).unwrap_or_default(),
    }
}

/// Examines the host in the background, once in each process, and logs a warning when it doesn't
/// run Linux: a guest on it may take minutes before it fails.
pub fn warn_if_unfit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let examine = || {
            let report = vmm_doctor::examine();
            if !report.runs_linux {
                tracing::warn!("{}; {}", report.verdict, report.advice.join("; "));
            }
        };
        // Without a thread there is no warning. The guest's own end tells the same later.
        let _ = thread::Builder::new()
            .name("doctor".to_owned())
            .spawn(examine);
    });
}

/// Examines the host and prints the report, as text or as JSON. Returns success if the host runs
/// guests.
#[must_use]
pub fn report(json: bool) -> ExitCode {
    let report = vmm_doctor::examine();
    let text = if json {
        serde_json::to_string_pretty(&report).unwrap_or_default()
    } else {
        report.to_string()
    };
    // If the reader of the output has gone, the exit code is still right.
    let _ = writeln!(io::stdout(), "{}", text.trim_end());
    if report.runs_linux {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
