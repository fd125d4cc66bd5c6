//! The syntax of a probe on the command line.
//!
//! | form | means |
//! | --- | --- |
//! | `vfs_read` | the function's first instruction behind its ftrace site |
//! | `vfs_read+0x15`, `vfs_read+21` | so many bytes from the symbol |
//! | `0xffffffff812f0c15` | an address |
//! | `open=do_sys_openat2` | the same, with a name for the probe |
//! | `p:open do_sys_openat2` | the same, in the form of the kernel's `kprobe_events` |
//!
//! The kernel's form is that of `Documentation/trace/kprobetrace.rst`; return probes, modules and
//! arguments, which also stand there, are refused by name.

use thiserror::Error;
use vmprobe_proto::v1::probe_spec::Place;
use vmprobe_proto::v1::{ProbeSpec, SymbolPlace};

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

/// Reads one probe.
///
/// # Errors
/// [`SpecError`] with the column of the first character that doesn't fit.
pub fn parse(text: &str) -> Result<ProbeSpec, SpecError> {
    let mut reader = Reader { text, at: 0 };
    reader.spec().map_err(|(at, reason)| SpecError {
        text: text.to_owned(),
        column: text[..at].chars().count() + 1,
        reason,
    })
}

/// A byte position in the text, and what is wrong there.
type Wrong = (usize, String);

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn spec(&mut self) -> Result<ProbeSpec, Wrong> {
        self.skip_spaces();
        let name = match self.kernel_form()? {
            Some(name) => name,
            None => self.name_and_equals()?,
        };
        let place = self.place()?;
        let end = self.at;
        self.skip_spaces();
        match self.rest().chars().next() {
            None => Ok(ProbeSpec {
                name: name.to_owned(),
                place: Some(place),
            }),
            Some('%') => self.wrong("return probes are not supported yet"),
            Some(':') => self.wrong("probes in modules (MOD:SYM) are not supported yet"),
            Some('-') => self.wrong("an offset is positive: SYM+0x10"),
            Some(_) if self.at > end => self.wrong("probe arguments are not supported yet"),
            Some('+') => self.wrong("an address takes no offset: add it to the address"),
            Some(other) => self.wrong(&format!("`{other}` doesn't belong here")),
        }
    }

    /// `p`, `p:NAME` or `p:GROUP/NAME` and the space behind it; the name is empty for a plain `p`.
    fn kernel_form(&mut self) -> Result<Option<&'a str>, Wrong> {
        let rest = self.rest();
        let head = rest.split_whitespace().next().unwrap_or_default();
        let alone = head.len() == rest.trim_end().len();
        let (kind, colon) = match head.split_once(':') {
            Some((kind, _)) => (kind, true),
            None => (head, false),
        };
        // `p` alone, or a symbol that begins with p, is a place.
        if !colon && alone {
            return Ok(None);
        }
        match kind {
            "p" => {}
            "-" => return self.wrong("`-:NAME` removes a probe: use `vmprobe probe rm NAME`"),
            _ if kind.starts_with('r') && kind[1..].chars().all(|c| c.is_ascii_digit()) => {
                return self.wrong("return probes are not supported yet");
            }
            _ => return Ok(None),
        }
        self.at += kind.len();
        let mut name = "";
        if colon {
            self.at += 1;
            name = self.take(is_name);
            if name.is_empty() {
                return self.wrong("a name for the probe belongs behind `p:`");
            }
        }
        let before = self.at;
        self.skip_spaces();
        if self.rest().is_empty() {
            return self.wrong("a place such as vfs_read+0x5 or 0xADDRESS is missing");
        }
        if self.at == before {
            return self.wrong("a name has letters, digits and _ . - / only; then a space");
        }
        Ok(Some(name))
    }

    /// `NAME=`, or nothing.
    fn name_and_equals(&mut self) -> Result<&'a str, Wrong> {
        let Some(end) = self.rest().find('=') else {
            return Ok("");
        };
        let name = self.take(is_name);
        if name.is_empty() && end == 0 {
            return self.wrong("a name belongs before `=`");
        }
        if name.len() != end {
            return self.wrong("a name has letters, digits and _ . - / only");
        }
        self.at += 1;
        Ok(name)
    }

    fn place(&mut self) -> Result<Place, Wrong> {
        if self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Place::Address(self.address()?));
        }
        let symbol = self.take(is_symbol);
        if symbol.is_empty() {
            return self.wrong("a symbol or an address (0x...) belongs here");
        }
        let mut offset = 0;
        if self.rest().starts_with('+') {
            self.at += 1;
            offset = self.number("an offset such as 0x15 or 21 belongs behind `+`")?;
        }
        Ok(Place::Symbol(SymbolPlace {
            symbol: symbol.to_owned(),
            offset,
        }))
    }

    fn address(&mut self) -> Result<u64, Wrong> {
        if !self.rest().starts_with("0x") && !self.rest().starts_with("0X") {
            return self.wrong("an address begins with 0x");
        }
        self.number("an address is 0x and up to 16 hexadecimal digits")
    }

    fn number(&mut self, missing: &str) -> Result<u64, Wrong> {
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
        u64::from_str_radix(digits, radix).map_err(|_| (start, "more than 64 bits".to_owned()))
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn skip_spaces(&mut self) {
        self.take(char::is_whitespace);
    }

    fn wrong<T>(&self, reason: &str) -> Result<T, Wrong> {
        Err((self.at, reason.to_owned()))
    }
}

/// What a probe's name may have; the same that the server takes, besides the `+` of default names.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.-/".contains(c)
}

/// What a kernel symbol has: C's letters, and the dots and dollars of the compiler's own.
fn is_symbol(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.$@".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, symbol: &str, offset: u64) -> ProbeSpec {
        ProbeSpec {
            name: name.into(),
            place: Some(Place::Symbol(SymbolPlace {
                symbol: symbol.into(),
                offset,
            })),
        }
    }

    fn address(name: &str, address: u64) -> ProbeSpec {
        ProbeSpec {
            name: name.into(),
            place: Some(Place::Address(address)),
        }
    }

    #[test]
    fn every_documented_form_is_read() {
        let table = [
            ("vfs_read", symbol("", "vfs_read", 0)),
            ("vfs_read+0x15", symbol("", "vfs_read", 0x15)),
            ("vfs_read+21", symbol("", "vfs_read", 21)),
            ("0xffffffff812f0c15", address("", 0xffff_ffff_812f_0c15)),
            ("open=do_sys_openat2", symbol("open", "do_sys_openat2", 0)),
            ("a.b-c=0x10", address("a.b-c", 0x10)),
            ("p vfs_read", symbol("", "vfs_read", 0)),
            (
                "p:open do_sys_openat2+8",
                symbol("open", "do_sys_openat2", 8),
            ),
            ("p:grp/open 0xff", address("grp/open", 0xff)),
            ("  p:x   y  ", symbol("x", "y", 0)),
            ("p", symbol("", "p", 0)),
            ("r", symbol("", "r", 0)),
            ("panic", symbol("", "panic", 0)),
            ("foo.constprop.0+0x4", symbol("", "foo.constprop.0", 4)),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_error_points_at_its_column() {
        let table = [
            ("", 1, "belongs here"),
            ("vfs_read+", 10, "behind `+`"),
            ("vfs_read+5c", 11, "begins with 0x"),
            ("vfs_read+0x5g", 13, "not a digit"),
            ("vfs_read+0x", 12, "behind `+`"),
            ("vfs_read-4", 9, "positive"),
            ("vfs read", 5, "arguments"),
            ("p:x vfs_read %di", 14, "return probes"),
            ("p:x vfs_read path=+0(%si)", 14, "arguments"),
            ("vfs_read%return", 9, "return probes"),
            ("r:x vfs_read", 1, "return probes"),
            ("r16 vfs_read", 1, "return probes"),
            ("p:", 3, "name"),
            ("p: vfs_read", 3, "name"),
            ("p:x", 4, "missing"),
            ("p:a*b vfs_read", 4, "letters"),
            ("-:x", 1, "probe rm"),
            ("=vfs_read", 1, "before `=`"),
            ("a b=vfs_read", 2, "letters"),
            ("x=", 3, "belongs here"),
            ("ext4:ext4_read", 5, "modules"),
            ("1234", 1, "0x"),
            ("0x10+4", 5, "no offset"),
            ("0x11111111111111111", 1, "64 bits"),
            ("vfs_read+99999999999999999999", 10, "64 bits"),
            ("été", 1, "belongs here"),
            ("x=é", 3, "belongs here"),
            ("fooé", 4, "doesn't belong"),
        ];
        for (text, column, reason) in table {
            let error = parse(text).expect_err(text);
            assert_eq!(error.column, column, "{text}: {error}");
            assert!(error.reason.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn the_message_quotes_the_text() {
        assert_eq!(
            parse("vfs_read+").unwrap_err().to_string(),
            "bad probe `vfs_read+`, column 10: an offset such as 0x15 or 21 belongs behind `+`"
        );
    }
}
