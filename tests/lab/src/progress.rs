//! One line on standard error for each step that takes a while.

use std::io::Write;

/// Says what is done next.
pub(crate) fn step(what: &str) {
    // If standard error is closed, the work goes on.
    let _ = writeln!(std::io::stderr(), "lab: {what}");
}
