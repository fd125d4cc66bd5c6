//! One stream of results: suites within each other.

use std::collections::VecDeque;
use std::time::Duration;

use super::element::{Directive, Element, Found, TestResult};
use super::results::{Case, MAX_CASES, MAX_DIAGNOSTICS, Outcome, Results};
use crate::bound::start_of;

/// How deep suites may be within each other.
const MAX_DEPTH: usize = 8;
/// Problems that are kept.
const MAX_PROBLEMS: usize = 256;
/// Bytes of a name, and of a line of diagnostics.
const MAX_NAME: usize = 256;
const MAX_TEXT: usize = 1024;
/// Bytes of diagnostics that are kept in all.
const MAX_KEPT: usize = 32 << 20;

/// Results that have the same indentation, and no result of their own yet.
#[derive(Debug)]
struct Suite {
    column: usize,
    name: Option<String>,
    plan: Option<u64>,
    results: u64,
    /// Suites in it that have no result of their own, but count as results.
    without: u64,
    /// Where its cases begin in the list of all.
    first: usize,
    /// When the last of its tests ended, or it began.
    mark: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Each is within the one before it.
    suites: Vec<Suite>,
    cases: Vec<Case>,
    /// How many cases aren't kept because there are too many.
    unkept: u64,
    problems: Vec<String>,
    pending: VecDeque<String>,
    /// Bytes of the cases' diagnostics.
    kept: usize,
    begun: bool,
}

impl Stream {
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Returns true if all results that were promised are there.
    pub(super) fn is_complete(&self) -> bool {
        match &*self.suites {
            [] => true,
            [suite] => suite.plan.is_some_and(|plan| suite.results >= plan),
            _ => false,
        }
    }

    /// Takes an element in, if it can be one here.
    pub(super) fn take(&mut self, found: Found<'_>, at: Option<Duration>) -> bool {
        let Found {
            column,
            commented,
            element,
        } = found;
        let top = self.suites.last().map(|suite| suite.column);
        let known = self.suites.iter().any(|suite| suite.column == column);
        if commented && !known && element != Element::Version {
            return false;
        }
        match element {
            Element::Version => self.begin(column, None, at),
            Element::Subtest(name) => {
                let name = start_of(name, MAX_NAME).to_owned();
                let suite = self.suites.last_mut();
                match suite.filter(|suite| suite.column == column && suite.results == 0) {
                    Some(suite) => suite.name = Some(name),
                    None => self.begin(column, Some(name), at),
                }
            }
            Element::Plan(plan) => {
                let suite = self.suites.last_mut();
                let Some(suite) = suite.filter(|suite| suite.column == column) else {
                    return false;
                };
                suite.plan = suite.plan.or(Some(plan));
            }
            Element::BailOut(why) => {
                if !self.begun || self.is_complete() {
                    return false;
                }
                let why = start_of(why, MAX_NAME);
                self.problem(|| format!("the tests were given up: {why}"));
                self.close();
            }
            Element::Result(result) => {
                // A result further in than all suites belongs to none of them.
                if top.is_none_or(|top| column > top) || (!known && commented) {
                    return false;
                }
                self.result(column, result, at);
            }
        }
        true
    }

    /// Keeps a line for the test that is under way.
    pub(super) fn diagnostic(&mut self, text: &str) {
        if self.suites.is_empty() || self.is_complete() || text.is_empty() {
            return;
        }
        // `kunit_print_attr` in lib/kunit/attributes.c: it is about the suite.
        if text.trim_start().starts_with("# module:") {
            return;
        }
        if self.pending.len() == MAX_DIAGNOSTICS {
            self.pending.pop_front();
        }
        self.pending.push_back(start_of(text, MAX_TEXT).to_owned());
    }

    pub(super) fn finish(mut self) -> Results {
        self.close();
        if self.unkept > 0 {
            let unkept = self.unkept;
            self.problems
                .push(format!("{unkept} more results are left out"));
        }
        Results {
            cases: self.cases,
            problems: self.problems,
        }
    }

    fn begin(&mut self, column: usize, name: Option<String>, at: Option<Duration>) {
        self.begun = true;
        // A suite that doesn't begin further in than an open one follows the open one.
        if self.suites.iter().any(|suite| suite.column >= column) {
            self.close_down_to(column + 1);
            if self
                .suites
                .last()
                .is_some_and(|suite| suite.column == column)
            {
                self.close_last();
            }
        }
        if self.suites.len() == MAX_DEPTH {
            self.problem(|| "suites are too deep within each other".to_owned());
            return;
        }
        self.suites.push(Suite {
            column,
            name,
            plan: None,
            results: 0,
            without: 0,
            first: self.cases.len(),
            mark: at,
        });
    }

    fn result(&mut self, column: usize, result: TestResult<'_>, at: Option<Duration>) {
        let within = self.take_within(column);
        if self
            .suites
            .last()
            .is_none_or(|suite| suite.column != column)
        {
            // Suites of a module have no version line in front (`kunit_module_init` in lib/kunit/test.c of 6.1).
            self.begin(column, None, at);
            if let (Some(suite), Some(within)) = (self.suites.last_mut(), &within) {
                suite.first = within.first;
                suite.mark = None;
            }
        }
        let Some(suite) = self.suites.last_mut() else {
            return;
        };
        let expected = suite.results.saturating_add(1);
        suite.results = result.number.max(expected);
        let started = std::mem::replace(&mut suite.mark, at);
        let over = suite.plan.is_some_and(|plan| expected > plan);
        let name = match start_of(result.name, MAX_NAME) {
            "" => format!("test {}", result.number),
            name => name.to_owned(),
        };
        if result.number != expected {
            self.problem(|| {
                format!(
                    "{name} is result {}, expected was {expected}",
                    result.number
                )
            });
        } else if over {
            self.problem(|| format!("{name} is one more result than planned"));
        }
        let outcome = outcome(result);
        let mut whole = false;
        if let Some(suite) = within {
            self.check_plan(&suite, &name, matches!(outcome, Outcome::Skip { .. }));
            let inside = &mut self.cases[suite.first..];
            for case in &mut *inside {
                case.path.insert(0, name.clone());
            }
            let failed = inside.iter().any(|case| case.outcome.is_failure());
            // A failure that the results inside show already isn't reported twice.
            whole = !inside.is_empty() && (failed || !outcome.is_failure());
            if failed && outcome == Outcome::Pass {
                self.problem(|| format!("{name} is ok, but a test in it isn't"));
            }
        }
        let diagnostics = std::mem::take(&mut self.pending);
        if !whole {
            let duration = at
                .zip(started)
                .map(|(at, started)| at.saturating_sub(started));
            let remark = start_of(result.remark, MAX_TEXT).to_owned();
            self.add(Case {
                path: vec![name],
                outcome,
                remark,
                diagnostics: diagnostics.into(),
                duration,
            });
        }
    }

    /// Takes the suite whose result stands in this column. Suites further in have no result of their own, and are
    /// closed.
    fn take_within(&mut self, column: usize) -> Option<Suite> {
        loop {
            let suite = self.suites.pop_if(|suite| suite.column > column)?;
            if self
                .suites
                .last()
                .is_none_or(|outer| outer.column <= column)
            {
                return Some(suite);
            }
            self.suites.push(suite);
            self.close_last();
        }
    }

    /// Closes all suites that begin further in than this column.
    fn close_down_to(&mut self, column: usize) {
        while self
            .suites
            .last()
            .is_some_and(|suite| suite.column > column)
        {
            self.close_last();
        }
    }

    /// Closes the innermost suite, which has no result of its own.
    fn close_last(&mut self) {
        let Some(suite) = self.suites.pop() else {
            return;
        };
        let outermost = self.suites.is_empty();
        let missing = match suite.plan {
            Some(plan) => suite.results < plan,
            None => !outermost && suite.results == 0,
        };
        // The pending lines are those of the innermost test only.
        let pending = std::mem::take(&mut self.pending);
        if missing && (!pending.is_empty() || !self.ended_unfinished(suite.first)) {
            let name = test_name(&pending)
                .unwrap_or_else(|| format!("test {}", suite.results.saturating_add(1)));
            self.add(Case {
                path: vec![name],
                outcome: Outcome::Unfinished,
                remark: String::new(),
                diagnostics: pending.into(),
                duration: None,
            });
        }
        let number = self
            .suites
            .last()
            .map_or(0, |outer| outer.results.saturating_add(1));
        let name = match &suite.name {
            Some(name) => name.clone(),
            None if outermost => "the whole".to_owned(),
            None => format!("suite {number}"),
        };
        self.check_plan(&suite, &name, false);
        if !outermost {
            self.problem(|| format!("{name} has no result of its own"));
        }
        if !outermost || suite.name.is_some() {
            for case in &mut self.cases[suite.first..] {
                case.path.insert(0, name.clone());
            }
        }
        if let Some(outer) = self.suites.last_mut() {
            outer.results = outer.results.saturating_add(1);
            outer.without += 1;
        }
    }

    /// Returns true if the last case from `first` on has no result: then no other test was under way.
    fn ended_unfinished(&self, first: usize) -> bool {
        let last = self.cases.get(first..).and_then(|cases| cases.last());
        last.is_some_and(|case| case.outcome == Outcome::Unfinished)
    }

    fn close(&mut self) {
        while !self.suites.is_empty() {
            self.close_last();
        }
    }

    fn check_plan(&mut self, suite: &Suite, name: &str, skipped: bool) {
        match suite.plan {
            Some(plan) if suite.results < plan && !skipped => {
                let results = suite.results - suite.without;
                self.problem(|| format!("{name} has {results} of {plan} results"));
            }
            None if suite.results == 0 && !skipped => {
                self.problem(|| format!("{name} has no results"));
            }
            _ => {}
        }
    }

    fn add(&mut self, mut case: Case) {
        if self.cases.len() >= MAX_CASES {
            self.unkept += 1;
            return;
        }
        let size: usize = case.diagnostics.iter().map(String::len).sum();
        if self.kept + size > MAX_KEPT {
            case.diagnostics = Vec::new();
        } else {
            self.kept += size;
        }
        self.cases.push(case);
    }

    fn problem(&mut self, text: impl FnOnce() -> String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(text());
        }
    }
}

fn outcome(result: TestResult<'_>) -> Outcome {
    let reason = start_of(result.remark, MAX_TEXT).to_owned();
    match result.directive {
        Some(Directive::Skip) => Outcome::Skip { reason },
        Some(Directive::Todo) => Outcome::Todo { reason },
        Some(Directive::Timeout) => Outcome::TimedOut,
        Some(Directive::Error) => Outcome::Error,
        None if result.ok => Outcome::Pass,
        None => Outcome::Fail,
    }
}

/// Returns the name of the test that has printed these lines: `# name: text` of `KUnit`'s (`kunit_log` in
/// `include/kunit/test.h`), `# selftests: net: name` of kselftest's.
fn test_name(lines: &VecDeque<String>) -> Option<String> {
    let comments = lines
        .iter()
        .filter_map(|line| line.trim_start().strip_prefix("# "));
    let mut names = comments.filter_map(|text| {
        if text.starts_with("selftests: ") {
            return Some(text);
        }
        let (name, _) = text.split_once(": ")?;
        (!name.is_empty() && !name.contains(' ')).then_some(name)
    });
    names
        .next_back()
        .map(|name| start_of(name, MAX_NAME).to_owned())
}
