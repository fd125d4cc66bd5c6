//! A part of a text, with its place in the whole.

use std::ops::Range;

/// A part of a text, and where it begins in the whole, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub text: &'a str,
    pub at: usize,
}

impl<'a> Piece<'a> {
    pub fn whole(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub fn span(self) -> Range<usize> {
        self.at..self.end()
    }

    pub fn end(self) -> usize {
        self.at + self.text.len()
    }

    /// Returns what follows the first `bytes`; nothing where they end within a character or beyond the text.
    pub fn skip(self, bytes: usize) -> Self {
        match self.text.get(bytes..) {
            Some(text) => Self {
                text,
                at: self.at + bytes,
            },
            None => Self {
                text: "",
                at: self.end(),
            },
        }
    }

    /// Returns what follows a prefix, if the text begins with it.
    pub fn behind(self, prefix: &str) -> Option<Self> {
        let text = self.text.strip_prefix(prefix)?;
        Some(Self {
            text,
            at: self.at + prefix.len(),
        })
    }

    /// Returns what stands before the byte `at`, and what stands from there on.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let rest = self.skip(at);
        let text = self.text.get(..rest.at - self.at).unwrap_or(self.text);
        (Self { text, ..self }, rest)
    }

    /// Returns what stands before the first `separator`, and what stands behind it.
    pub fn split(self, separator: char) -> Option<(Self, Self)> {
        let (before, rest) = self.split_at(self.text.find(separator)?);
        Some((before, rest.skip(separator.len_utf8())))
    }

    /// Returns the beginning whose characters all belong, by `belongs`, and the rest.
    pub fn take(self, belongs: impl Fn(char) -> bool) -> (Self, Self) {
        let end = self.text.find(|c| !belongs(c));
        self.split_at(end.unwrap_or(self.text.len()))
    }
}

/// Reads a whole number, as `kstrtoul` with base 0 does (`lib/kstrtox.c`): `0x` for hexadecimal, `0` for octal, else
/// decimal.
pub fn number(text: &str) -> Option<u64> {
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, text.get(2..)?),
        [b'0', _, ..] => (8, text.get(1..)?),
        _ => (10, text),
    };
    let all = digits.chars().all(|c| c.is_digit(radix));
    all.then(|| u64::from_str_radix(digits, radix).ok())?
}

/// Reads a number that may have a minus, as `kstrtol` with base 0 does.
pub fn signed(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(digits) => 0_i64.checked_sub_unsigned(number(digits)?),
        None => i64::try_from(number(text)?).ok(),
    }
}

/// Returns true if a text is a name of C (`is_good_name` in `kernel/trace/trace.h`).
pub fn is_identifier(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && text.starts_with(|c: char| !c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_kernels_bases() {
        for (text, expected) in [
            ("0", Some(0)),
            ("10", Some(10)),
            ("010", Some(8)),
            ("0x10", Some(16)),
            ("0XfF", Some(255)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("0x", None),
            ("+1", None),
            ("-1", None),
            ("09", None),
            ("0x+1", None),
            ("1a", None),
            ("é", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
        for (text, expected) in [
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
            ("9223372036854775808", None),
            ("-0x10", Some(-16)),
            ("--1", None),
            ("-", None),
        ] {
            assert_eq!(signed(text), expected, "{text}");
        }
    }

    #[test]
    fn a_name_of_c_begins_with_no_digit() {
        for (text, good) in [
            ("a", true),
            ("_1", true),
            ("", false),
            ("1a", false),
            ("a-b", false),
            ("é", false),
        ] {
            assert_eq!(is_identifier(text), good, "{text}");
        }
    }

    #[test]
    fn pieces_know_their_places() {
        let piece = Piece::whole("ab=cd");
        let (name, rest) = piece.split('=').unwrap();
        assert_eq!((name.text, name.span()), ("ab", 0..2));
        assert_eq!((rest.text, rest.span()), ("cd", 3..5));
        assert_eq!(rest.skip(9).span(), 5..5);
        assert_eq!(Piece::whole("é").skip(1).text, "");
        assert!(piece.split('+').is_none());
    }
}
