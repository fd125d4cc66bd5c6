//! One line on standard error for each step that takes a while.

use std::io::Write;

/// Says what is done next.
pub(crate) fn step(what: &str) {
    // Nobody to tell is no reason to stop.
    let _ = writeln!(std::io::stderr(), "lab: {what}");
}
