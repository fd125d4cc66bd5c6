//! The reader of one definition.

mod arguments;
mod cursor;
mod name;
pub mod options;

use cursor::Cursor;
pub use cursor::WrongAt;
pub use name::check as check_name;
use options::Asked;
use vmprobe_proto::v1::probe_spec::{Kind, Place};
use vmprobe_proto::v1::{
    InstructionProbe, ProbeOptions, ProbeSpec, ReturnProbe, SymbolPlace, Watchpoint,
};

use crate::error::SpecError;
use crate::limits::MAXACTIVE_MAX;

pub fn read(text: &str) -> Result<ProbeSpec, SpecError> {
    let mut reader = Cursor { text, at: 0 };
    reader.spec().map_err(|wrong| error(text, wrong))
}

/// Makes the error about a place in a text.
pub fn error(text: &str, wrong: WrongAt) -> SpecError {
    let WrongAt {
        span,
        reason,
        kernel,
    } = wrong;
    let end = match text.get(span.start..) {
        Some(rest) if span.is_empty() => {
            span.start + rest.find(char::is_whitespace).unwrap_or(rest.len())
        }
        _ => span.end,
    };
    let characters = |bytes: std::ops::Range<usize>| text.get(bytes).unwrap_or("").chars().count();
    SpecError {
        text: text.to_owned(),
        line: None,
        column: characters(0..span.start) + 1,
        length: characters(span.start..end),
        reason,
        kernel,
    }
}

impl<'a> Cursor<'a> {
    fn spec(&mut self) -> Result<ProbeSpec, WrongAt> {
        self.skip_spaces();
        let (mut kind, name) = match self.kernel_form()? {
            Some(head) => head,
            None => (instruction(), self.name_and_equals()?),
        };
        let place = self.place(&mut kind)?;
        if let Kind::Watchpoint(watch) = &mut kind {
            self.extent(watch)?;
        }
        let Asked {
            enabled,
            options,
            arguments,
            stack,
            filter,
        } = self.options(&mut kind, &place)?;
        Ok(ProbeSpec {
            name: name.to_owned(),
            place: Some(place),
            kind: Some(kind),
            enabled,
            options: Some(options).filter(|options| *options != ProbeOptions::default()),
            arguments: arguments.into_texts(),
            filter: filter.to_owned(),
            stack,
            // The kernel's grammar has no actions.
            actions: Vec::new(),
        })
    }

    /// Reads `p`, `r16:NAME`, `w:GROUP/NAME` and so on, and the space behind it; the name is empty where there is none.
    fn kernel_form(&mut self) -> Result<Option<(Kind, &'a str)>, WrongAt> {
        let rest = self.rest();
        let head = self.word();
        let alone = head.len() == rest.trim_end().len();
        let (letter, colon) = match head.split_once(':') {
            Some((letter, _)) => (letter, true),
            None => (head, false),
        };
        // `p` alone, or a symbol that begins with p, is a place.
        if !colon && alone {
            return Ok(None);
        }
        let kind = match letter {
            "p" => instruction(),
            "w" => Kind::Watchpoint(Watchpoint::default()),
            "-" => return self.wrong("`-:NAME` removes a probe: use `vmprobe probe rm NAME`"),
            _ => match letter.strip_prefix('r') {
                Some(count) if count.bytes().all(|byte| byte.is_ascii_digit()) => {
                    let maxactive = self.maxactive(count)?;
                    Kind::Return(ReturnProbe {
                        maxactive,
                        rets: false,
                    })
                }
                _ => {
                    if !alone {
                        self.no_kind(letter, colon)?;
                    }
                    return Ok(None);
                }
            },
        };
        self.at += letter.len();
        let mut name = "";
        if colon {
            self.at += 1;
            let start = self.at;
            name = self.take(is_name);
            if name.is_empty() {
                let reason = format!("a name for the probe belongs behind `{letter}:`");
                return Err(WrongAt::new(start, reason).called("NO_EVENT_NAME"));
            }
            check_name(name, start)?;
        }
        let before = self.at;
        self.skip_spaces();
        if self.rest().is_empty() {
            return self.wrong("a place such as vfs_read+0x5 or 0xADDRESS is missing");
        }
        if self.at == before {
            return self.wrong("a name has letters, digits and _ . - / only; then a space");
        }
        Ok(Some((kind, name)))
    }

    /// Refuses what the kernel takes for a wrong kind of probe (`__trace_kprobe_create` in
    /// `kernel/trace/trace_kprobe.c`), so that it isn't read as a place with a parameter's name behind it. No kernel's
    /// symbol looks like that, except for the few with neither `_` nor `.` that begin with p or r and a digit: with
    /// words behind, they need a `p ` or `r ` before them.
    fn no_kind(&self, head: &str, colon: bool) -> Result<(), WrongAt> {
        let is_word = head.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let behind = head.get(1..).unwrap_or("");
        let number = behind.starts_with(|c: char| c.is_ascii_digit());
        if !is_word || head.is_empty() {
            return Ok(());
        }
        let wrong = |at, reason: &str, kernel| Err(WrongAt::new(at, reason).called(kernel));
        match head.as_bytes() {
            [b'p', ..] if number => wrong(
                self.at + 1,
                "only a return probe follows a number of calls: write `r64 FUNCTION`",
                "BAD_MAXACT_TYPE",
            ),
            [b'r', ..] if number => wrong(
                self.at + 1,
                "a number of calls belongs behind `r`; for a place of that name, write `p ` before it",
                "BAD_MAXACT",
            ),
            [letter] if colon && letter.is_ascii_alphabetic() => {
                self.wrong("a probe's kind is p, r or w; for a module, write `p MODULE:SYMBOL`")
            }
            _ => Ok(()),
        }
    }

    /// Reads how many calls `r64` follows; 0, the default, for a plain `r`.
    fn maxactive(&self, digits: &str) -> Result<u32, WrongAt> {
        if digits.is_empty() {
            return Ok(0);
        }
        match digits.parse() {
            Ok(count) if count <= MAXACTIVE_MAX => Ok(count),
            _ => {
                let reason =
                    format!("a return probe follows at most {MAXACTIVE_MAX} calls at a time");
                let wrong = WrongAt::new(self.at + 1, reason).over(digits.len());
                Err(wrong.called("MAXACT_TOO_BIG"))
            }
        }
    }

    /// Reads `NAME=`, or nothing.
    fn name_and_equals(&mut self) -> Result<&'a str, WrongAt> {
        let Some(end) = self.word().find('=') else {
            return Ok("");
        };
        let start = self.at;
        let name = self.take(is_name);
        if name.is_empty() && end == 0 {
            return self.wrong("a name belongs before `=`");
        }
        if name.len() != end {
            return self.wrong("a name has letters, digits and _ . - / only");
        }
        check_name(name, start)?;
        self.at += 1;
        Ok(name)
    }

    /// Reads `[MODULE:]SYMBOL[+OFFSET][%return]` or an address.
    fn place(&mut self, kind: &mut Kind) -> Result<Place, WrongAt> {
        let start = self.at;
        let module = self.module(matches!(kind, Kind::Watchpoint(_)));
        if module.is_empty() && self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Place::Address(self.address()?));
        }
        let symbol = match kind {
            Kind::Watchpoint(_) => self.take(is_symbol),
            _ => self.take(|c| is_symbol(c) || is_wild(c)),
        };
        if symbol.is_empty() && module.is_empty() {
            return self.wrong("a symbol or an address (0x...) belongs here");
        }
        if symbol.is_empty() {
            return self.wrong(&format!("a symbol of the module {module} belongs here"));
        }
        // These are about the whole place, as in the kernel (`__trace_kprobe_create`).
        let wrong = |reason: &str, kernel| Err(WrongAt::new(start, reason).called(kernel));
        let mut offset = 0;
        if self.rest().starts_with('+') {
            self.at += 1;
            offset = self.number("an offset such as 0x15 or 21 belongs behind `+`")?;
        }
        if self.rest().starts_with('-') {
            let reason = match self.word().contains(':') {
                true => "a module's name has `_` for every `-`",
                false => "an offset is positive, as in SYM+0x10",
            };
            return wrong(reason, "BAD_PROBE_ADDR");
        }
        if offset != 0 && is_pattern(symbol) {
            return wrong(
                "a pattern stands for whole functions, so it takes no offset",
                "BAD_PROBE_ADDR",
            );
        }
        if self.rest().starts_with('%') {
            self.percent_return(kind)?;
        }
        if matches!(kind, Kind::Return(_)) && offset != 0 {
            let reason = "a return probe is on a whole function, so it takes no offset";
            return wrong(reason, "BAD_RETPROBE");
        }
        Ok(Place::Symbol(SymbolPlace {
            symbol: symbol.to_owned(),
            offset,
            module: module.to_owned(),
        }))
    }

    /// Reads `MODULE:`, or nothing. Text that can be an access, as in `jiffies:rw`, is taken for one.
    fn module(&mut self, watch: bool) -> &'a str {
        let word = self.word();
        let Some((module, behind)) = word.split_once(':') else {
            return "";
        };
        // `jiffies:rw/8` is a mistake, and must not become a probe that waits for a module called jiffies.
        let last = behind.split_once('/').filter(|(_, end)| !end.contains(':'));
        let last = last.map_or(behind, |(last, _)| last);
        let access = watch && last.bytes().all(|byte| b"rwx".contains(&byte));
        // A module's name may begin with a digit (8021q, 9p); an address isn't one.
        let address = module.starts_with("0x") || module.starts_with("0X");
        if access || address || module.is_empty() || !module.chars().all(is_symbol) {
            return "";
        }
        self.at += module.len() + 1;
        module
    }

    /// Reads `%return`, which makes a return probe of a plain one.
    fn percent_return(&mut self, kind: &mut Kind) -> Result<(), WrongAt> {
        let word = self.word();
        match kind {
            _ if word != "%return" => {
                let wrong = WrongAt::new(self.at, "only %return can follow the symbol");
                Err(wrong.called("BAD_ADDR_SUFFIX"))
            }
            Kind::Watchpoint(_) => self.wrong("data doesn't return: use `r` for a return probe"),
            Kind::Return(_) => self.accept(word),
            Kind::Instruction(_) => {
                *kind = Kind::Return(ReturnProbe::default());
                self.accept(word)
            }
        }
    }

    /// Reads a watchpoint's `[/LENGTH][:ACCESS]`.
    fn extent(&mut self, watch: &mut Watchpoint) -> Result<(), WrongAt> {
        if self.rest().starts_with('/') {
            self.at += 1;
            let start = self.at;
            watch.length = match self.number("a length belongs behind `/`: 1, 2, 4 or 8")? {
                length @ (1 | 2 | 4 | 8) => length as u32,
                _ => return Err(WrongAt::new(start, "a length is 1, 2, 4 or 8 bytes")),
            };
        }
        if self.rest().starts_with(':') {
            self.at += 1;
            let start = self.at;
            watch.reads = match self.take(|c| c.is_ascii_alphabetic()) {
                "w" => false,
                "rw" => true,
                "r" => return Err(WrongAt::new(start, "x86 can't watch reads alone: use rw")),
                "x" => {
                    return Err(WrongAt::new(
                        start,
                        "to probe an instruction, use `p`, not `w`",
                    ));
                }
                _ => return Err(WrongAt::new(start, "an access is w (writes) or rw")),
            };
            if self.rest().starts_with('/') {
                return self.wrong("the length goes before the access, as in jiffies/8:rw");
            }
        }
        Ok(())
    }

    fn address(&mut self) -> Result<u64, WrongAt> {
        if !self.rest().starts_with("0x") && !self.rest().starts_with("0X") {
            return self.wrong("an address begins with 0x");
        }
        self.number("an address is 0x and up to 16 hexadecimal digits")
    }
}

fn instruction() -> Kind {
    Kind::Instruction(InstructionProbe::default())
}

/// Returns true for what a probe's name may have: the characters that the server takes, except for the `+` of default
/// names.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.-/".contains(c)
}

/// Returns true for what a pattern for symbols may have besides: `*` is any text, `?` one character.
fn is_wild(c: char) -> bool {
    c == '*' || c == '?'
}

/// Returns true if a place's symbol is a pattern, such as `tcp_*`: it stands for all functions that match.
#[must_use]
pub fn is_pattern(symbol: &str) -> bool {
    symbol.contains(is_wild)
}

/// Returns true for what a kernel symbol may have: C's letters, and the dots and dollars of the compiler's own.
fn is_symbol(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.$@".contains(c)
}

#[cfg(test)]
mod tests;
