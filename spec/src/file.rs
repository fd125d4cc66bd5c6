//! Several definitions in one text.

use vmprobe_proto::v1::ProbeSpec;

use crate::reader::{check_name, error, read};
use crate::{SpecError, WrongAt};

/// What a line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// A probe.
    Register(ProbeSpec),
    /// `-:NAME`: removes the probe of that name.
    Remove {
        /// The name, as it was given: `EVENT` or `GROUP/EVENT`; `GROUP/` for all of the group.
        name: String,
        /// Words behind the name. Of several probes of that name, only the one with this place, and these
        /// arguments, is meant (`trace_kprobe_match` in `kernel/trace/trace_kprobe.c`).
        only: Vec<String>,
    },
}

/// Reads what the lines of a text ask for, such as those of a file: a probe in any form, `-:NAME`, or nothing. What
/// follows a `#` is a comment, except in quotes (`trace_parse_run_command` in `kernel/trace/trace.c`; the kernel knows
/// no such exception, and no line that goes on in the next). Errors have the numbers of their lines.
///
/// ```
/// use vmprobe_spec::{Command, definitions};
///
/// let mut found = definitions("p:open do_sys_openat2 dfd # files\n\n-:open\n");
/// assert!(matches!(found.next(), Some(Ok(Command::Register(spec))) if spec.arguments == ["dfd"]));
/// assert!(matches!(found.next(), Some(Ok(Command::Remove { name, .. })) if name == "open"));
/// assert!(found.next().is_none());
/// ```
pub fn definitions(text: &str) -> impl Iterator<Item = Result<Command, SpecError>> {
    let lines = (1..).zip(text.lines());
    lines.filter_map(|(number, line)| {
        let code = before_comment(line);
        if code.trim().is_empty() {
            return None;
        }
        Some(command(code).map_err(|error| SpecError {
            line: Some(number),
            ..error
        }))
    })
}

fn command(line: &str) -> Result<Command, SpecError> {
    let start = line.len() - line.trim_start().len();
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or("");
    if !first.starts_with('-') {
        return read(line).map(Command::Register);
    }
    let wrong = |wrong| error(line, wrong);
    let Some(name) = first.strip_prefix("-:") else {
        return Err(wrong(WrongAt::new(
            start,
            "to remove a probe, write `-:NAME`",
        )));
    };
    let name_at = start + "-:".len();
    let belongs = |c: char| c.is_ascii_alphanumeric() || "_.-/+".contains(c);
    if let Some(at) = name.find(|c| !belongs(c)) {
        let reason = "a name has letters, digits and _ . - / only; then a space";
        return Err(wrong(WrongAt::new(name_at + at, reason)));
    }
    if name.is_empty() {
        let reason = "the name of the probe to remove belongs behind `-:`";
        return Err(wrong(WrongAt::new(name_at, reason).called("NO_EVENT_NAME")));
    }
    if name.contains('/') {
        check_name(name, name_at).map_err(wrong)?;
    }
    Ok(Command::Remove {
        name: name.to_owned(),
        only: words.map(str::to_owned).collect(),
    })
}

/// Returns what stands before a line's `#`. Quotes without an end don't count as quotes.
fn before_comment(line: &str) -> &str {
    let mut from = 0;
    while let Some(found) = line
        .get(from..)
        .and_then(|rest| rest.find(['#', '"', '\'']))
    {
        let at = from + found;
        let (before, rest) = line.split_at(at);
        let mut characters = rest.chars();
        let sign = characters.next();
        if sign == Some('#') {
            return before;
        }
        let closing = characters.as_str().find(|c| Some(c) == sign);
        from = at + 1 + closing.map_or(0, |closing| closing + 1);
    }
    line
}

#[cfg(test)]
mod tests;
