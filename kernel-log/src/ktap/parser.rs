//! Reading the results on a console.

use super::element;
use super::results::Results;
use super::stream::Stream;
use crate::line::Line;

/// Reads the results of tests from the lines of a console.
///
/// Results begin with a line `KTAP version 1`, `TAP version 13` or `TAP version 14`; lines in front of it are
/// passed over. Tests are within each other by their indentation, or by signs of comments (`# ok 1 name`) as in the
/// output of kselftest. Any other line between two results belongs to the second one.
///
/// What the kernel's log says, with the log's time in front, and what programs print are two streams of results: a
/// program's result doesn't end a test of the kernel's.
#[derive(Debug, Default)]
pub struct Parser {
    kernel: Stream,
    programs: Stream,
}

impl Parser {
    /// Makes a parser that has taken no lines in so far.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next line in, as [`Lines`](crate::Lines) gives it.
    pub fn line(&mut self, line: &str) {
        let line = Line::parse(line);
        let from_kernel = line.at.is_some();
        let found = element::find(line.text);
        let stream = if from_kernel {
            &mut self.kernel
        } else {
            &mut self.programs
        };
        if found.is_some_and(|found| stream.take(found, line.at)) {
            return;
        }
        self.programs.diagnostic(line.text);
        if from_kernel {
            self.kernel.diagnostic(line.text);
        }
    }

    /// Returns true if results have begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.kernel.has_begun() || self.programs.has_begun()
    }

    /// Returns true if results have begun, and there are as many as the plans promise.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.has_begun() && self.kernel.is_complete() && self.programs.is_complete()
    }

    /// Returns what the tests have ended with. A test that has begun and has no result is unfinished: the kernel has
    /// crashed, or the console ends too soon.
    #[must_use]
    pub fn finish(self) -> Results {
        let mut results = self.kernel.finish();
        let programs = self.programs.finish();
        results.cases.extend(programs.cases);
        results.problems.extend(programs.problems);
        results
    }
}
