//! What programs print, line by line behind a label, so that those of several machines stay apart.

use std::io::{self, Write};

use crate::say;

/// Shows whole lines, each behind a label.
pub struct Lines<'a> {
    label: &'a str,
    rest: Vec<u8>,
}

impl<'a> Lines<'a> {
    /// No lines yet.
    pub fn new(label: &'a str) -> Self {
        Self {
            label,
            rest: Vec::new(),
        }
    }

    /// The lines that are whole.
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line[..end]);
            lines.push(labelled(self.label, &text));
        }
        lines
    }

    /// Ends the last line, if it isn't whole.
    pub fn end(&mut self) {
        if !self.rest.is_empty() {
            // It keeps all that it is given.
            let _ = self.write(b"\n");
        }
    }
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for line in self.take(bytes) {
            say(&line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line of a place or machine, among those of others.
pub fn labelled(label: &str, line: &str) -> String {
    format!("{label:<14} | {line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_whatever_the_pieces() {
        let mut lines = Lines::new("lab-amd");
        assert!(lines.take(b"pa").is_empty());
        let both = ["lab-amd        | pass", "lab-amd        | "];
        assert_eq!(lines.take(b"ss\n\nx"), both);
    }
}
