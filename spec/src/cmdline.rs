//! Probes on a kernel's command line.

use vmprobe_proto::v1::ProbeSpec;

use crate::{SpecError, parse};

const PARAMETER: &str = "vmprobe.probe";

/// Reads the probes on a guest's command line: those of every
/// `vmprobe.probe=DEFINITION[;DEFINITION...]`, in order. Spaces in a definition are written as
/// commas, as in the kernel's own `kprobe_event=` (`vmprobe.probe=p:open,do_sys_openat2,post`), or
/// the whole is quoted (`vmprobe.probe="p:open do_sys_openat2 post"`).
///
/// Words and quotes are split as the kernel does (`next_arg` in `lib/cmdline.c`): what follows
/// `--` belongs to the guest's init and is not read.
#[must_use]
pub fn from_cmdline(cmdline: &str) -> Vec<Result<ProbeSpec, SpecError>> {
    let mut found = Vec::new();
    for word in words(cmdline) {
        if word == "--" {
            break;
        }
        if word == PARAMETER {
            found.push(Err(missing(word)));
        }
        let Some(value) = word.strip_prefix(PARAMETER) else {
            continue;
        };
        let Some(value) = value.strip_prefix('=') else {
            continue;
        };
        let value = match value.strip_prefix('"') {
            Some(quoted) => quoted.strip_suffix('"').unwrap_or(quoted),
            None => value,
        };
        let before = found.len();
        let definitions = value.split(';').filter(|text| !text.trim().is_empty());
        found.extend(definitions.map(one));
        if found.len() == before {
            found.push(Err(missing(word)));
        }
    }
    found
}

/// Reads one definition. Commas and spaces are equally long, so columns stay.
fn one(text: &str) -> Result<ProbeSpec, SpecError> {
    parse(&text.replace(',', " ")).map_err(|error| SpecError {
        text: text.to_owned(),
        ..error
    })
}

fn missing(word: &str) -> SpecError {
    SpecError {
        text: word.to_owned(),
        line: None,
        column: word.chars().count() + 1,
        length: 0,
        kernel: None,
        reason: format!("a probe belongs behind `{PARAMETER}=`"),
    }
}

/// Returns the words of a command line. Quotes keep spaces; those around a whole word are taken
/// away.
fn words(cmdline: &str) -> impl Iterator<Item = &str> {
    let mut rest = cmdline;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        if rest.is_empty() {
            return None;
        }
        let mut quoted = false;
        let end = rest.find(|c: char| {
            quoted ^= c == '"';
            c.is_whitespace() && !quoted
        });
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        Some(match word.strip_prefix('"') {
            Some(inner) => inner.strip_suffix('"').unwrap_or(inner),
            None => word,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition;

    fn texts(cmdline: &str) -> Vec<String> {
        from_cmdline(cmdline)
            .iter()
            .map(|found| match found {
                Ok(spec) => definition(spec),
                Err(error) => format!("{}: {}", error.column, error.text),
            })
            .collect()
    }

    #[test]
    fn commas_and_quoted_spaces_say_the_same() {
        let table: [(&str, &[&str]); 9] = [
            ("console=ttyS0 quiet", &[]),
            ("vmprobe.probe=vfs_read", &["p vfs_read"]),
            (
                "a vmprobe.probe=p:x,vfs_read,post,fault b",
                &["p:x vfs_read post fault"],
            ),
            (
                "a vmprobe.probe=\"p:x vfs_read post\" b",
                &["p:x vfs_read post"],
            ),
            (
                "\"vmprobe.probe=p:x vfs_read post\"",
                &["p:x vfs_read post"],
            ),
            (
                "vmprobe.probe=a;r8:b,c; vmprobe.probe=\"w d/4:rw ; e\"",
                &["p a", "r8:b c", "w d/4:rw", "p e"],
            ),
            ("vmprobe.probe=\"p a", &["p a"]),
            ("vmprobe.probes=a xvmprobe.probe=b vmprobe.probe.c=d", &[]),
            ("vmprobe.probe=a -- vmprobe.probe=b", &["p a"]),
        ];
        for (cmdline, expected) in table {
            assert_eq!(texts(cmdline), expected, "{cmdline}");
        }
    }

    #[test]
    fn a_bad_definition_is_an_error_among_good_ones() {
        assert_eq!(texts("vmprobe.probe=a;p,b+;c"), ["p a", "5: p,b+", "p c"]);
    }

    #[test]
    fn a_parameter_without_a_probe_is_an_error() {
        assert_eq!(texts("vmprobe.probe"), ["14: vmprobe.probe"]);
        assert_eq!(texts("vmprobe.probe=;"), ["16: vmprobe.probe=;"]);
    }
}
