//! The results of tests that a kernel or a program prints on its console: KTAP, and TAP 13 and 14.
//!
//! The format is described in `Documentation/dev-tools/ktap.rst`. `KUnit` prints it into the kernel's log
//! (`lib/kunit/test.c`), kselftest on standard output (`tools/testing/selftests/kselftest/runner.sh`, `kselftest.h`).

mod element;
mod parser;
mod results;
mod stream;

pub use parser::Parser;
pub use results::{Case, MAX_CASES, MAX_DIAGNOSTICS, Outcome, Results};
