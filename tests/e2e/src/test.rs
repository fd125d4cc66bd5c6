//! What a test is, and how it ends.

use std::io;

use serde::{Deserialize, Serialize};
use vmprobe_client::ClientError;

use crate::context::Context;

/// What a test needs of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Needs {
    /// No KVM at all.
    None,
    /// A `/dev/kvm` that runs a few hundred instructions of kernel-mode code.
    Tiny,
    /// As [`Tiny`](Self::Tiny), and what the lab machines don't have: a Prometheus, a browser, a bus, readers of files,
    /// an unemulated CPU.
    Host,
    /// A `/dev/kvm` that runs Linux.
    Linux,
}

/// One test.
#[derive(Debug)]
pub struct Test {
    /// Its name: what is true when it passes.
    pub name: &'static str,
    /// The rows of docs/requirements.md that it proves.
    pub ids: &'static [&'static str],
    /// What it needs.
    pub needs: Needs,
    /// The test itself.
    pub run: fn(&Context) -> TestResult,
}

/// How a test that ran to its end ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It passed; a remark such as a figure, or nothing.
    Pass(String),
    /// It can't be done here, for this reason.
    Skip(String),
    /// It failed, for this reason.
    Fail(String),
}

/// What a test's function returns.
pub type TestResult = Result<Outcome, Failure>;

/// Why a test failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something isn't as it should be.
    #[error("{0}")]
    Wrong(String),
    /// A call to the server failed.
    #[error("the server refused: {0}")]
    Client(#[from] ClientError),
    /// The server answered with an error.
    #[error("the server answered {:?}: {}", .0.code(), .0.message())]
    Status(Box<tonic::Status>),
    /// An operation of the test's own.
    #[error("can't {0}: {1}")]
    Io(String, #[source] io::Error),
    /// The tiny guest doesn't assemble.
    #[error("can't assemble the tiny guest: {0}")]
    Assemble(#[from] iced_x86::IcedError),
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl Failure {
    /// For `map_err` of an operation of the test's own.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |error| Self::Io(what, error)
    }
}

/// A failure, with a text as `format!` makes it.
macro_rules! wrong {
    ($($text:tt)+) => { $crate::test::Failure::Wrong(format!($($text)+)) };
}

/// Fails the test unless the condition holds.
macro_rules! check {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::test::wrong!($($text)+));
        }
    };
}

/// Fails the test unless both are equal; the text says what they are.
macro_rules! check_eq {
    ($found:expr, $expected:expr, $($text:tt)+) => {
        let (found, expected) = (&$found, &$expected);
        if found != expected {
            let what = format!($($text)+);
            return Err($crate::test::wrong!("{what}: found {found:?}, expected {expected:?}"));
        }
    };
}

pub(crate) use {check, check_eq, wrong};

/// Passed, with nothing to add.
pub fn pass() -> TestResult {
    Ok(Outcome::Pass(String::new()))
}

/// Passed, with a remark for the report.
pub fn pass_with(remark: impl Into<String>) -> TestResult {
    Ok(Outcome::Pass(remark.into()))
}
