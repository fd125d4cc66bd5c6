//! Results as JSON, in the form of docs/ci-report.schema.json.

use serde_json::{Value, json};
use vmprobe_kernel_log::ktap::{Case, Outcome};

use super::super::console_watch::KernelReport;
use super::super::outcome::{Attempt, Check, Coverage, End, JobResult};
use super::super::standing::Standing;

/// Makes the report of all results.
pub fn report(results: &[JobResult]) -> Value {
    let failed = results.iter().filter(|result| !result.passed()).count();
    json!({
        "passed": results.len() - failed,
        "failed": failed,
        "jobs": results.iter().map(job).collect::<Vec<_>>(),
    })
}

fn job(result: &JobResult) -> Value {
    json!({
        "name": result.name,
        "passed": result.passed(),
        "flaky": result.is_flaky(),
        "seconds": result.time().as_secs_f64(),
        "attempts": result.attempts.iter().map(attempt).collect::<Vec<_>>(),
    })
}

fn attempt(it: &Attempt) -> Value {
    json!({
        "passed": it.passed(),
        "seconds": it.time.as_secs_f64(),
        "end": end(&it.end),
        "checks": it.checks.iter().map(check).collect::<Vec<_>>(),
        "reports": it.reports.iter().map(kernel_report).collect::<Vec<_>>(),
        "tests": it.cases.iter().map(case).collect::<Vec<_>>(),
        "test_problems": it.problems,
        "coverage": it.coverage.iter().map(coverage).collect::<Vec<_>>(),
        "vcpus": it.standing.iter().map(standing).collect::<Vec<_>>(),
        "last_events": it.last_events,
        "lost_events": it.lost,
        "output": it.output,
        "console": it.console,
    })
}

fn end(end: &End) -> Value {
    match end {
        End::Command(code) => json!({ "kind": "command", "exit_code": code }),
        End::NotStarted(reason) => json!({ "kind": "not-started", "reason": reason }),
        End::Guest { how, .. } => json!({ "kind": "guest", "reason": how }),
        End::TimedOut(limit) => json!({ "kind": "timeout", "seconds": limit.as_secs_f64() }),
        End::NoStart(reason) => json!({ "kind": "no-start", "reason": reason }),
    }
}

fn check(check: &Check) -> Value {
    json!({ "name": check.name, "passed": check.passed, "detail": check.detail })
}

fn kernel_report(it: &KernelReport) -> Value {
    let report = &it.report;
    json!({
        "kind": report.kind.word(),
        "title": report.title,
        "seconds": report.at.map(|at| at.as_secs_f64()),
        "cpu": report.cpu,
        "task": report.task.as_ref().map(|task| json!({ "comm": task.comm, "pid": task.pid })),
        "stack": it.stack,
        "lines": report.lines,
        "truncated": report.truncated,
    })
}

fn case(case: &Case) -> Value {
    let (outcome, reason) = match &case.outcome {
        Outcome::Pass => ("pass", ""),
        Outcome::Skip { reason } => ("skip", reason.as_str()),
        Outcome::Todo { reason } => ("todo", reason.as_str()),
        Outcome::TimedOut => ("timeout", ""),
        Outcome::Error => ("error", ""),
        Outcome::Unfinished => ("unfinished", ""),
        _ => ("fail", case.remark.as_str()),
    };
    json!({
        "path": case.path,
        "outcome": outcome,
        "reason": reason,
        "seconds": case.duration.map(|time| time.as_secs_f64()),
        "diagnostics": case.diagnostics,
    })
}

fn coverage(coverage: &Coverage) -> Value {
    let functions = coverage.functions.iter();
    json!({
        "pattern": coverage.pattern,
        "functions": coverage.functions.len(),
        "called": coverage.reached(),
        "hits": functions.map(|it| (it.function.clone(), json!(it.hits))).collect::<serde_json::Map<_, _>>(),
    })
}

fn standing(it: &Standing) -> Value {
    let task = it.task.as_ref();
    json!({
        "vcpu": it.vcpu,
        "task": task.map(|(comm, pid)| json!({ "comm": comm, "pid": pid })),
        "stack": it.stack,
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::samples;
    use super::*;

    #[test]
    fn a_report_is_what_the_schema_says() {
        let text = include_str!("../../../../docs/ci-report.schema.json");
        let schema = serde_json::from_str(text).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let value = report(&[samples::failed(), samples::flaky(), samples::hanging()]);
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(value["failed"], 2);
        assert_eq!(value["jobs"][0]["attempts"][0]["end"]["exit_code"], 3);
        assert!(!validator.is_valid(&json!({ "passed": 1 })));
    }
}
