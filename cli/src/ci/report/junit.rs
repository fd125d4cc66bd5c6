//! Results as JUnit's XML: a suite for each job, a case for each thing that it is judged by and for each of its tests.

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestRerun, TestSuite};
use vmprobe_kernel_log::ktap::{Case, Outcome};

use super::super::outcome::{Attempt, Check, JobResult, outcome};

/// Makes the report of all results.
pub fn report(results: &[JobResult]) -> Report {
    let mut report = Report::new("vmprobe ci");
    report.set_time(results.iter().map(JobResult::time).sum());
    report.add_test_suites(results.iter().map(suite));
    report
}

fn suite(result: &JobResult) -> TestSuite {
    let mut suite = TestSuite::new(&*result.name);
    suite.set_time(result.time());
    let Some((last, before)) = result.attempts.split_last() else {
        return suite;
    };
    for (number, check) in last.checks.iter().enumerate() {
        let mut case = TestCase::new(&*check.name, status_of(check, last));
        case.set_classname(&*result.name);
        if number == 0 {
            // The first check is about the run as a whole.
            case.set_time(last.time);
            case.status.add_reruns(before.iter().map(rerun));
        }
        suite.add_test_case(case);
    }
    suite.add_test_cases(last.cases.iter().map(|case| test(case, &result.name)));
    for problem in &last.problems {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        status.set_message(&**problem);
        let mut case = TestCase::new("tests", status);
        case.set_classname(&*result.name);
        suite.add_test_case(case);
    }
    suite.set_system_out(last.output.join("\n"));
    suite.set_system_err(last.console.join("\n"));
    suite
}

fn status_of(check: &Check, attempt: &Attempt) -> TestCaseStatus {
    if check.passed {
        return TestCaseStatus::success();
    }
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
    status.set_message(&*check.detail);
    let of_report = attempt
        .reports
        .iter()
        .find(|it| it.report.title == check.detail);
    if let Some(it) = of_report {
        status.set_description(it.report.lines.join("\n"));
    } else if !attempt.standing.is_empty() {
        let stacks = attempt
            .standing
            .iter()
            .map(|it| format!("vCPU {}: {}", it.vcpu, it.stack.join(" < ")));
        status.set_description(stacks.collect::<Vec<_>>().join("\n"));
    }
    status
}

fn rerun(attempt: &Attempt) -> TestRerun {
    let mut rerun = TestRerun::new(NonSuccessKind::Failure);
    rerun.set_time(attempt.time);
    rerun.set_message(attempt.failures().join("; "));
    rerun
}

fn test(case: &Case, job: &str) -> TestCase {
    let status = match &case.outcome {
        Outcome::Skip { reason } | Outcome::Todo { reason } => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(&**reason);
            status
        }
        found if found.is_failure() => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(outcome(case));
            status.set_description(case.diagnostics.join("\n"));
            status
        }
        _ => TestCaseStatus::success(),
    };
    let (name, suites) = case
        .path
        .split_last()
        .map_or(("test", &[][..]), |(name, suites)| (name.as_str(), suites));
    let mut test = TestCase::new(name, status);
    let class = [&[job.to_owned()], suites].concat().join(".");
    test.set_classname(class);
    if let Some(time) = case.duration {
        test.set_time(time);
    }
    test
}

#[cfg(test)]
mod tests {
    use super::super::super::samples;
    use super::*;

    #[test]
    fn each_check_and_each_test_is_a_case() {
        let xml = report(&[samples::failed()]).to_string().unwrap();
        for part in [
            r#"<testsuite name="new/files" tests="4""#,
            r#"<testcase name="end" classname="new/files" time="2.500">"#,
            r#"<failure message="exit code 3"/>"#,
            r#"<testcase name="first" classname="new/files.suite""#,
            r#"<failure message="failed: exit=1">"#,
            "vfs_mkdir+0x9/0x130",
        ] {
            assert!(xml.contains(part), "{part} isn't in {xml}");
        }
    }

    #[test]
    fn a_run_that_failed_before_one_that_passes_is_kept() {
        let xml = report(&[samples::flaky()]).to_string().unwrap();
        assert!(xml.contains("<flakyFailure"), "{xml}");
        assert!(xml.contains(r#"failures="0""#), "{xml}");
    }
}
