//! What is wrong with a text.

use thiserror::Error;

/// Where and why the text of a probe can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("bad probe `{text}`, column {column}: {reason}")]
pub struct SpecError {
    /// The whole text.
    pub text: String,
    /// Column of the first character that is wrong, from 1; one past the end when something is
    /// missing there.
    pub column: usize,
    /// What is wrong, and what belongs there.
    pub reason: String,
}
