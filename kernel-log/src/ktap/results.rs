//! What tests have ended with.

use std::time::Duration;

/// Cases that are kept.
pub const MAX_CASES: usize = 1 << 16;

/// Lines that are kept with a case: the last ones in front of its result.
pub const MAX_DIAGNOSTICS: usize = 128;

/// How a test has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// `ok`.
    Pass,
    /// `not ok`.
    Fail,
    /// `SKIP`: it has not run.
    Skip {
        /// Why not; may be empty.
        reason: String,
    },
    /// `TODO` or `XFAIL`: its failure is expected.
    Todo {
        /// Why; may be empty.
        reason: String,
    },
    /// `TIMEOUT`: it took too long.
    TimedOut,
    /// `ERROR`: it could not be run to its end.
    Error,
    /// It has begun, and there is no result.
    Unfinished,
}

impl Outcome {
    /// Returns true if something is wrong.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::Fail | Self::TimedOut | Self::Error | Self::Unfinished
        )
    }
}

/// A test that has no tests within, or one that failed though none within did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name, behind those of the suites that it is in: `["example", "example_simple_test"]`. A test that has not
    /// told its name is `test 3`.
    pub path: Vec<String>,
    /// How it has ended.
    pub outcome: Outcome,
    /// What stands behind `#` in its result, without the directive: `exit=1`; may be empty.
    pub remark: String,
    /// What was printed in front of its result, [`MAX_DIAGNOSTICS`] lines at most, without the log's prefix. Other
    /// lines of the kernel's log are among them.
    pub diagnostics: Vec<String>,
    /// From the end of the test before to the end of this one, by the times of the kernel's log.
    pub duration: Option<Duration>,
}

/// What a console tells of tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// The tests in the order of their results.
    pub cases: Vec<Case>,
    /// What is wrong with the results as such: a plan that isn't met, a suite without results.
    pub problems: Vec<String>,
}

impl Results {
    /// Returns true if tests have run, and nothing is wrong.
    #[must_use]
    pub fn is_success(&self) -> bool {
        let failed = self.cases.iter().any(|case| case.outcome.is_failure());
        !self.cases.is_empty() && !failed && self.problems.is_empty()
    }
}
