//! From a console's bytes to lines of text.

/// Bytes of a line that are kept. A record of the kernel's log has 1024 at most (`PRINTK_MESSAGE_MAX` is 2048
/// with its prefix, `kernel/printk/internal.h`).
pub const MAX_LINE: usize = 4096;

/// Bytes of an escape sequence at most. A longer one isn't taken for an escape sequence, so text can't vanish behind
/// it.
const MAX_ESCAPE: u8 = 128;

/// Splits a console's bytes into lines.
///
/// A line of more than [`MAX_LINE`] bytes is cut, and its end says so. Carriage returns, other control
/// characters but the tab, and the escape sequences of a terminal (ECMA-48, 5.3 to 5.6) are left out; invalid
/// UTF-8 is replaced. How the bytes are divided between calls makes no difference.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    line: Vec<u8>,
    /// Bytes of this line that are not kept.
    cut: u64,
    escape: Escape,
}

/// Where in an escape sequence the next byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    /// Behind ESC.
    Begun,
    /// In a control sequence, `ESC [`. The number counts its bytes so far.
    Control(u8),
    /// In a control string, such as `ESC ]`. The number counts its bytes so far.
    String(u8),
}

impl Lines {
    /// Begins at the start of a line.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the lines that end in these bytes, without their ends.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for byte in bytes {
            if *byte == b'\n' {
                // An escape sequence has no end of line in it.
                self.escape = Escape::None;
                lines.push(self.take());
            } else if let Some(text) = self.text(*byte) {
                if self.line.len() < MAX_LINE {
                    self.line.push(text);
                } else {
                    self.cut += 1;
                }
            }
        }
        lines
    }

    /// Returns the last line, if it has no end.
    pub fn finish(&mut self) -> Option<String> {
        self.escape = Escape::None;
        (!self.line.is_empty()).then(|| self.take())
    }

    /// Returns the byte, if it belongs to the text.
    fn text(&mut self, byte: u8) -> Option<u8> {
        const ESC: u8 = 0x1b;
        const BEL: u8 = 0x07;
        let next = match (self.escape, byte) {
            (_, ESC) => Escape::Begun,
            (Escape::Begun, b'[') => Escape::Control(0),
            (Escape::Begun, b']' | b'P' | b'X' | b'^' | b'_') => Escape::String(0),
            // Intermediate bytes, such as those of `ESC ( B`.
            (Escape::Begun, 0x20..=0x2f) => Escape::Begun,
            // The last byte of the sequence.
            (Escape::Begun, 0x30..=0x7e) => return self.leave(),
            (Escape::Control(_), 0x40..=0x7e) | (Escape::String(_), BEL) => return self.leave(),
            (Escape::Control(length @ 0..MAX_ESCAPE), 0x20..=0x3f) => Escape::Control(length + 1),
            (Escape::String(length @ 0..MAX_ESCAPE), 0x08..=0xff) => Escape::String(length + 1),
            _ => {
                self.escape = Escape::None;
                return (byte == b'\t' || byte >= 0x20 && byte != 0x7f).then_some(byte);
            }
        };
        self.escape = next;
        None
    }

    fn leave(&mut self) -> Option<u8> {
        self.escape = Escape::None;
        None
    }

    fn take(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.line);
        // Control characters that UTF-8 has beyond ASCII: a terminal obeys some of them.
        let visible = |c: &char| *c == '\t' || !c.is_control();
        let mut text: String = text.chars().filter(visible).collect();
        if self.cut > 0 {
            text += &format!(" [{} more bytes cut]", self.cut);
        }
        self.line.clear();
        self.cut = 0;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_without_what_only_a_terminal_needs() {
        let table: [(&[u8], &[&str], Option<&str>); 12] = [
            (b"a\r\nb\n", &["a", "b"], None),
            (b"\n\nx", &["", ""], Some("x")),
            (b"\x1b[1;31mred\x1b[0m\n", &["red"], None),
            (b"\x1bc\x1b[?7l\x1b[2J[    0.0] x\n", &["[    0.0] x"], None),
            (b"\x1b]0;title\x07text\n", &["text"], None),
            (b"\x1b]0;title\x1b\\text\n", &["text"], None),
            (b"\x1b(Btext\n", &["text"], None),
            (b"\x1b[1\nnext\n", &["", "next"], None),
            (b"\x1b]open\nnext", &[""], Some("next")),
            (b"a\tb\x08\x00\x07\x7f\n", &["a\tb"], None),
            (b"\xff\xc3\xa4\xe2\n", &["\u{fffd}ä\u{fffd}"], None),
            ("\u{9b}1mx\n".as_bytes(), &["1mx"], None),
        ];
        for (bytes, expected, rest) in table {
            let mut lines = Lines::new();
            let shown = String::from_utf8_lossy(bytes);
            assert_eq!(lines.push(bytes), expected, "{shown:?}");
            assert_eq!(lines.finish().as_deref(), rest, "{shown:?}");
            assert_eq!(lines.finish(), None);
        }
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        let mut lines = Lines::new();
        for _ in 0..MAX_LINE {
            assert!(lines.push(b"xyz").is_empty());
        }
        let found = lines.push(b"\nshort\n");
        assert_eq!(found[0].len(), MAX_LINE + " [8192 more bytes cut]".len());
        assert!(
            found[0].ends_with("x [8192 more bytes cut]"),
            "{}",
            &found[0][MAX_LINE - 9..]
        );
        assert_eq!(found[1], "short");
    }

    #[test]
    fn an_escape_sequence_without_an_end_hides_little_text() {
        for start in [&b"\x1b["[..], b"\x1b]"] {
            let mut lines = Lines::new();
            lines.push(start);
            lines.push(&[b'1'; 1000]);
            let line = lines.finish().unwrap();
            assert!(line.len() > 800, "{line}");
        }
    }
}
