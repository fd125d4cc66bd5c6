//! The text of a definition, read from its start to its end.

use std::ops::Range;

use crate::{argument, filter};

/// What is wrong, and where.
#[derive(Debug)]
pub struct WrongAt {
    /// In bytes of the text; empty for all of the word that begins there.
    pub span: Range<usize>,
    pub reason: String,
    /// The kernel's name for it.
    pub kernel: Option<&'static str>,
}

impl WrongAt {
    pub fn new(at: usize, reason: impl Into<String>) -> Self {
        Self {
            span: at..at,
            reason: reason.into(),
            kernel: None,
        }
    }

    /// Adds the kernel's name for it.
    pub fn called(self, kernel: &'static str) -> Self {
        Self {
            kernel: Some(kernel),
            ..self
        }
    }

    /// Makes the error one about the first `bytes` bytes.
    pub fn over(self, bytes: usize) -> Self {
        Self {
            span: self.span.start..self.span.start + bytes,
            ..self
        }
    }

    /// Makes the error about an argument that begins at a byte.
    pub fn of_argument(at: usize, wrong: &argument::Wrong) -> Self {
        Self {
            span: at + wrong.span.start..at + wrong.span.end,
            reason: wrong.to_string(),
            kernel: wrong.reason.kernel_name(),
        }
    }

    /// Makes the error about a filter that begins at a byte.
    pub fn of_filter(at: usize, wrong: &filter::Wrong) -> Self {
        Self {
            span: at + wrong.span.start..at + wrong.span.end,
            reason: wrong.to_string(),
            kernel: wrong.reason.kernel_name(),
        }
    }
}

/// A position in the text.
pub struct Cursor<'a> {
    pub text: &'a str,
    /// In bytes.
    pub at: usize,
}

impl<'a> Cursor<'a> {
    pub fn accept(&mut self, word: &str) -> Result<(), WrongAt> {
        self.at += word.len();
        Ok(())
    }

    pub fn number(&mut self, missing: &str) -> Result<u64, WrongAt> {
        let start = self.at;
        let (radix, digits) = match self.rest().get(..2) {
            Some("0x" | "0X") => {
                self.at += 2;
                (16, self.take(|c| c.is_ascii_hexdigit()))
            }
            _ => (10, self.take(|c| c.is_ascii_digit())),
        };
        if digits.is_empty() {
            return self.wrong(missing);
        }
        if self.rest().starts_with(|c: char| c.is_ascii_alphanumeric()) {
            let hint = if radix == 10 {
                "; hexadecimal begins with 0x"
            } else {
                ""
            };
            return self.wrong(&format!("not a digit{hint}"));
        }
        u64::from_str_radix(digits, radix).map_err(|_| WrongAt::new(start, "more than 64 bits"))
    }

    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Returns what stands here, up to the next space.
    pub fn word(&self) -> &'a str {
        let rest = self.rest();
        &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())]
    }

    pub fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    pub fn skip_spaces(&mut self) {
        self.take(char::is_whitespace);
    }

    pub fn wrong<T>(&self, reason: &str) -> Result<T, WrongAt> {
        Err(WrongAt::new(self.at, reason))
    }
}
