//! Results as lines.

use super::super::outcome::{Attempt, JobResult};

/// Lines of a report's stack, and of the console and the output, that are shown of a job that has failed. Reports in
/// JSON have more of them, and the frames that the kernel isn't sure of.
const STACK: usize = 12;
const TAIL: usize = 20;

/// Returns a job's result: one line, and the reasons if it has failed.
pub fn job(result: &JobResult) -> Vec<String> {
    let word = match (result.passed(), result.is_flaky()) {
        (true, false) => "pass",
        (true, true) => "flaky",
        (false, _) => "FAIL",
    };
    let seconds = result.time().as_secs_f64();
    let mut lines = vec![format!("{word} {} {seconds:.1} s", result.name)];
    let Some(last) = result.attempts.last() else {
        return lines;
    };
    if result.is_flaky() {
        let failed = result.attempts.iter().flat_map(Attempt::failures);
        lines.extend(failed.map(|failure| format!("  before: {failure}")));
    }
    if result.passed() {
        let checks = last.checks.iter().skip(1);
        lines.extend(checks.map(|check| format!("  {}: {}", check.name, check.detail)));
        if !last.cases.is_empty() {
            lines.push(format!("  tests: {}", tests(last)));
        }
        return lines;
    }
    lines.extend(last.failures().iter().map(|failure| format!("  {failure}")));
    for report in &last.reports {
        if report.stack.is_empty() {
            continue;
        }
        lines.push(format!("  stack of {}:", report.report.title));
        let sure = report.stack.iter().filter(|frame| !frame.starts_with('?'));
        lines.extend(sure.take(STACK).map(|frame| format!("    {frame}")));
    }
    for stands in &last.standing {
        let task = stands.task.as_ref();
        let task = task.map_or(String::new(), |(comm, pid)| {
            format!(" in {comm}, pid {pid}")
        });
        lines.push(format!("  vCPU {}{task}:", stands.vcpu));
        lines.extend(stands.stack.iter().map(|frame| format!("    {frame}")));
    }
    part(&mut lines, "last events", &last.last_events);
    part(&mut lines, "output", &last.output);
    if last.reports.is_empty() {
        part(&mut lines, "console", &last.console);
    }
    lines
}

fn part(lines: &mut Vec<String>, name: &str, all: &[String]) {
    if all.is_empty() {
        return;
    }
    lines.push(format!("  {name}:"));
    let last = all.iter().skip(all.len().saturating_sub(TAIL));
    lines.extend(last.map(|line| format!("    {line}")));
}

/// Returns how many tests have passed, and how many not.
pub fn tests(attempt: &Attempt) -> String {
    let all = attempt.cases.len();
    let is_failure = |case: &&vmprobe_kernel_log::ktap::Case| case.outcome.is_failure();
    let failed = attempt.cases.iter().filter(is_failure).count();
    match failed {
        0 => format!("{all}, none failed"),
        failed => format!("{all}, {failed} failed"),
    }
}

/// Returns the last line.
pub fn summary(results: &[JobResult]) -> String {
    let passed = results.iter().filter(|result| result.passed()).count();
    let flaky = results.iter().filter(|result| result.is_flaky()).count();
    let failed = results.len() - passed;
    let mut text = format!("{passed} passed, {failed} failed");
    if flaky > 0 {
        text += &format!(", {flaky} of them only when run again");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::super::samples;
    use super::*;

    #[test]
    fn a_job_that_has_failed_is_told_with_the_reason() {
        let lines = job(&samples::failed());
        assert_eq!(
            lines,
            [
                "FAIL new/files 2.5 s",
                "  end: exit code 3",
                "  kernel: oops: BUG: kernel NULL pointer dereference, address: 0000000000000000",
                "  test suite/second: failed: exit=1",
                "  stack of BUG: kernel NULL pointer dereference, address: 0000000000000000:",
                "    vfs_mkdir+0x9/0x130",
                "  output:",
                "    not ok 2 second",
            ]
        );
    }

    #[test]
    fn a_job_that_passes_when_run_again_is_flaky() {
        let result = samples::flaky();
        let lines = job(&result);
        assert_eq!(lines[0], "flaky old 4.0 s");
        assert_eq!(lines[1], "  before: end: exit code 3");
        let all = [samples::failed(), result];
        let expected = "1 passed, 1 failed, 1 of them only when run again";
        assert_eq!(summary(&all), expected);
    }
}
