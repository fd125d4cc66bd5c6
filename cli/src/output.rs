//! Lines to standard output, and notes to standard error.

use std::io::{self, BufWriter, Stdout, Write};

use crate::failure::Failure;

/// Standard output, gathered until [`Output::flush`].
pub struct Output(BufWriter<Stdout>);

impl Output {
    pub fn new() -> Self {
        Self(BufWriter::new(io::stdout()))
    }

    pub fn line(&mut self, line: impl AsRef<str>) -> Result<(), Failure> {
        writeln!(self.0, "{}", line.as_ref()).map_err(Failure::Output)
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(Failure::Output)
    }
}

/// Prints all lines.
pub fn print(lines: impl IntoIterator<Item = impl AsRef<str>>) -> Result<(), Failure> {
    let mut output = Output::new();
    for line in lines {
        output.line(line)?;
    }
    output.flush()
}

/// Prints a note to the user on standard error.
pub fn note(text: impl AsRef<str>) {
    print_beside(&format!("vmprobe: {}", text.as_ref()));
}

/// Prints a line on standard error.
#[expect(clippy::print_stderr, reason = "the one place where notes are shown")]
pub fn print_beside(line: &str) {
    eprintln!("{line}");
}
