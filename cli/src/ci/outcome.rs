//! What a job has come to.

use std::time::Duration;

use vmprobe_kernel_log::ktap::Case;

use super::console_watch::KernelReport;
use super::standing::Standing;

/// How a guest has ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Its command has ended with this code.
    Command(u8),
    /// Its command could not be started.
    NotStarted(String),
    /// By itself: whether it has switched itself off as it should, and how it has ended in words.
    Guest { is_good: bool, how: String },
    /// It has not ended in time.
    TimedOut(Duration),
    /// It could not be booted, or its probes could not be planted.
    NoStart(String),
}

/// Something that a job is judged by.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What is looked at.
    pub name: String,
    pub passed: bool,
    /// What was found; of one that has failed, why.
    pub detail: String,
}

/// How often a function was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    pub function: String,
    pub hits: u64,
}

/// The functions of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    pub pattern: String,
    /// By name.
    pub functions: Vec<Called>,
}

impl Coverage {
    /// How many of the functions were called.
    pub fn reached(&self) -> usize {
        let reached = self.functions.iter().filter(|it| it.hits > 0);
        reached.count()
    }
}

/// What was seen of one run of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    pub end: End,
    pub time: Duration,
    /// The end, what the kernel has reported, and the expectations, in this order.
    pub checks: Vec<Check>,
    pub reports: Vec<KernelReport>,
    /// The tests that the console or the output of the command tells of, and what is wrong with that.
    pub cases: Vec<Case>,
    pub problems: Vec<String>,
    pub coverage: Vec<Coverage>,
    /// Where the vCPUs of a guest that hangs stand.
    pub standing: Vec<Standing>,
    /// The last events of the probes, as lines, and how many were lost.
    pub last_events: Vec<String>,
    pub lost: u64,
    /// The last lines of the console and of the command's output.
    pub console: Vec<String>,
    pub output: Vec<String>,
}

impl Attempt {
    /// Makes an attempt of which only the end is known.
    pub fn ended(end: End, time: Duration) -> Self {
        Self {
            end,
            time,
            checks: Vec::new(),
            reports: Vec::new(),
            cases: Vec::new(),
            problems: Vec::new(),
            coverage: Vec::new(),
            standing: Vec::new(),
            last_events: Vec::new(),
            lost: 0,
            console: Vec::new(),
            output: Vec::new(),
        }
    }

    pub fn passed(&self) -> bool {
        let failed = |case: &Case| case.outcome.is_failure();
        self.checks.iter().all(|check| check.passed)
            && !self.cases.iter().any(failed)
            && self.problems.is_empty()
    }

    /// Returns what has failed, a line each.
    pub fn failures(&self) -> Vec<String> {
        let checks = self.checks.iter().filter(|check| !check.passed);
        let checks = checks.map(|check| format!("{}: {}", check.name, check.detail));
        let cases = self.cases.iter().filter(|case| case.outcome.is_failure());
        let cases = cases.map(|case| format!("test {}: {}", case.path.join("/"), outcome(case)));
        let problems = self
            .problems
            .iter()
            .map(|problem| format!("tests: {problem}"));
        checks.chain(cases).chain(problems).collect()
    }
}

/// Returns how a test has ended, in words.
pub fn outcome(case: &Case) -> String {
    use vmprobe_kernel_log::ktap::Outcome as O;
    let with = |word: &str, reason: &str| match reason {
        "" => word.to_owned(),
        reason => format!("{word}: {reason}"),
    };
    match &case.outcome {
        O::Pass => "passed".to_owned(),
        O::Fail => with("failed", &case.remark),
        O::Skip { reason } => with("skipped", reason),
        O::Todo { reason } => with("expected to fail", reason),
        O::TimedOut => "took too long".to_owned(),
        O::Error => "could not be run to its end".to_owned(),
        O::Unfinished => "has begun and not ended".to_owned(),
        _ => "unknown".to_owned(),
    }
}

/// A job and all its runs, the last of which counts.
#[derive(Clone, Debug, PartialEq)]
pub struct JobResult {
    pub name: String,
    /// At least one.
    pub attempts: Vec<Attempt>,
}

impl JobResult {
    pub fn passed(&self) -> bool {
        self.attempts.last().is_some_and(Attempt::passed)
    }

    /// Returns true if it has passed, and not the first time.
    pub fn is_flaky(&self) -> bool {
        self.passed() && self.attempts.len() > 1
    }

    pub fn time(&self) -> Duration {
        self.attempts.iter().map(|attempt| attempt.time).sum()
    }
}
