//! The report's entries.

use std::io::{self, Write};

use serde::Serialize;

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// Row of docs/requirements.md; a row may have several figures.
    pub id: &'static str,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What it was measured on: `native`, this machine without a guest that runs, or `host`, this machine's
    /// own KVM.
    #[serde(rename = "where")]
    pub place: &'static str,
    /// What was measured.
    pub how: String,
    /// Its limit, whether it is kept, and remarks.
    pub note: String,
}

impl Entry {
    /// A figure of this machine.
    pub fn native(
        id: &'static str,
        value: f64,
        unit: &'static str,
        how: impl Into<String>,
    ) -> Self {
        Self {
            id,
            value,
            unit,
            place: "native",
            how: how.into(),
            note: String::new(),
        }
    }

    /// Adds a remark.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Adds the processor's name, as a time is valid for this one only.
    #[must_use]
    pub fn on(mut self, processor: &str) -> Self {
        if !self.note.is_empty() {
            self.note += "; ";
        }
        self.note += processor;
        self
    }
}

/// Writes the entries, one line of JSON each.
///
/// # Errors
/// Those of writing.
pub fn write(entries: &[Entry], to: &mut dyn Write) -> io::Result<()> {
    for entry in entries {
        writeln!(to, "{}", serde_json::to_string(entry)?)?;
    }
    to.flush()
}
