//! The output of programs, line by line with a label, so that those of several machines can be told
//! apart.

use std::io::{self, Write};

use crate::say;

/// Shows whole lines, each with a label before it.
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

    /// Takes the lines that are whole.
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
            // It keeps all bytes, so this can't fail.
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

/// Returns a line with the label of its place or machine.
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
