//! Results for tests of reports.

use std::time::Duration;

use vmprobe_kernel_log::Reports;
use vmprobe_kernel_log::ktap::{Case, Outcome};

use super::console_watch::KernelReport;
use super::outcome::{Attempt, Check, End, JobResult};
use super::standing::Standing;

const OOPS: &str = "\
[    1.000000] BUG: kernel NULL pointer dereference, address: 0000000000000000
[    1.000000] RIP: 0010:vfs_mkdir+0x9/0x130
[    1.000000] ---[ end trace 0000000000000000 ]---";

fn attempt(end: End, seconds: f64) -> Attempt {
    Attempt::ended(end, Duration::from_secs_f64(seconds))
}

fn check(name: &str, passed: bool, detail: &str) -> Check {
    Check {
        name: name.to_owned(),
        passed,
        detail: detail.to_owned(),
    }
}

fn exit_3() -> Attempt {
    Attempt {
        checks: vec![check("end", false, "exit code 3")],
        ..attempt(End::Command(3), 2.5)
    }
}

/// Makes a job whose kernel oopses, and one of whose two tests fails.
pub fn failed() -> JobResult {
    let mut reports = Reports::new();
    let mut found: Vec<_> = OOPS.lines().filter_map(|line| reports.line(line)).collect();
    found.extend(std::iter::from_fn(|| reports.finish()));
    let report = KernelReport {
        report: found.remove(0),
        stack: ["vfs_mkdir+0x9/0x130", "? do_syscall_64+0x5c/0x90"]
            .map(str::to_owned)
            .to_vec(),
    };
    let case = |name: &str, outcome, remark: &str| Case {
        path: vec!["suite".to_owned(), name.to_owned()],
        outcome,
        remark: remark.to_owned(),
        diagnostics: Vec::new(),
        duration: None,
    };
    let mut it = exit_3();
    it.checks
        .push(check("kernel: oops", false, &report.report.title));
    it.reports = vec![report];
    it.cases = vec![
        case("first", Outcome::Pass, ""),
        case("second", Outcome::Fail, "exit=1"),
    ];
    it.output = vec!["not ok 2 second".to_owned()];
    JobResult {
        name: "new/files".to_owned(),
        attempts: vec![it],
    }
}

/// Makes a job that passes when it is run again.
pub fn flaky() -> JobResult {
    let passed = Attempt {
        checks: vec![check("end", true, "exit code 0")],
        ..attempt(End::Command(0), 1.5)
    };
    JobResult {
        name: "old".to_owned(),
        attempts: vec![exit_3(), passed],
    }
}

/// Makes a job whose guest hangs.
pub fn hanging() -> JobResult {
    let limit = Duration::from_secs(60);
    let hangs = Attempt {
        checks: vec![check("end", false, "not done within 1m")],
        standing: vec![Standing {
            vcpu: 0,
            task: Some(("sh".to_owned(), 7)),
            stack: vec!["delay_tsc+0x30/0x70".to_owned()],
        }],
        ..attempt(End::TimedOut(limit), 60.0)
    };
    JobResult {
        name: "hangs".to_owned(),
        attempts: vec![hangs],
    }
}
