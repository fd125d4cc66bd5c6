//! A terminal that shows one picture after the other.

use std::io::{self, Write};

use rustix::stdio::stdout;
use rustix::termios::tcgetwinsize;

use crate::failure::Failure;

/// The size that is taken for a terminal whose size isn't known.
const SIZE: (usize, usize) = (24, 80);

/// The terminal's second screen, until this is dropped.
pub struct Screen(());

impl Screen {
    /// Changes to the second screen and hides the cursor (xterm's control sequences, which all terminals of
    /// Linux's time have).
    pub fn enter() -> Result<Self, Failure> {
        write("\x1b[?1049h\x1b[?25l")?;
        Ok(Self(()))
    }

    /// Shows a title and as many lines as fit.
    pub fn show(&mut self, title: &str, lines: &[String]) -> Result<(), Failure> {
        write(&picture(title, lines, size()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing else can be done about a terminal that has gone.
        let _ = write("\x1b[?25h\x1b[?1049l");
    }
}

/// Returns rows and columns.
fn size() -> (usize, usize) {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => SIZE,
    }
}

/// Makes the text of a picture. Each line ends by clearing the rest of its row, so that nothing flickers.
fn picture(title: &str, lines: &[String], (rows, columns): (usize, usize)) -> String {
    let all = [title, ""]
        .into_iter()
        .chain(lines.iter().map(String::as_str));
    let shown: Vec<String> = all
        .take(rows)
        .map(|line| line.chars().take(columns).collect())
        .collect();
    format!("\x1b[H{}\x1b[K\x1b[J", shown.join("\x1b[K\r\n"))
}

fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(Failure::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_the_terminal() {
        let lines = ["abcdef", "second", "third"].map(str::to_owned);
        assert_eq!(
            picture("title", &lines, (4, 4)),
            "\x1b[Htitl\x1b[K\r\n\x1b[K\r\nabcd\x1b[K\r\nseco\x1b[K\x1b[J"
        );
    }
}
