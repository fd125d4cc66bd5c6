//! The values of arguments, and how the kernel writes them.

use std::fmt::Write;

use vmprobe_proto::v1::value::Value as Kind;
use vmprobe_proto::v1::{Argument, ArgumentFormat, Value};

use crate::text;

/// Lists within lists that are written; deeper ones become `{...}`.
pub(crate) const DEPTH: usize = 8;

/// A value, understood by the format of its argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Meaning<'a> {
    Unsigned(u64),
    Signed(i64),
    Hex(u64),
    Char(u8),
    /// A string, which stands in quotes.
    String(&'a [u8]),
    /// Text that stands for itself.
    Text(&'a [u8]),
    List(&'a [Value]),
    Fault,
    /// A value that the sender has left out.
    Missing,
}

/// Returns what a value means for an argument. A value that the protocol doesn't foresee, such as text for a number,
/// keeps its own type.
pub(crate) fn meaning<'a>(argument: Option<&Argument>, value: &'a Value) -> Meaning<'a> {
    let format = argument.map_or(ArgumentFormat::Unspecified, Argument::format);
    let size = argument.map_or(0, |argument| argument.size);
    match &value.value {
        None => Meaning::Missing,
        Some(Kind::Fault(_)) => Meaning::Fault,
        Some(Kind::List(list)) => Meaning::List(&list.values),
        Some(Kind::Text(text)) if format == ArgumentFormat::String => Meaning::String(text),
        Some(Kind::Text(text)) => Meaning::Text(text),
        Some(Kind::Unsigned(number)) => {
            of_format(format, size, *number).unwrap_or(Meaning::Unsigned(*number))
        }
        Some(Kind::Signed(number)) => {
            of_format(format, size, number.cast_unsigned()).unwrap_or(Meaning::Signed(*number))
        }
    }
}

fn of_format(format: ArgumentFormat, size: u32, bits: u64) -> Option<Meaning<'static>> {
    let unused = match size {
        1 | 2 | 4 => 64 - 8 * size,
        _ => 0,
    };
    let unsigned = bits << unused >> unused;
    Some(match format {
        ArgumentFormat::Unsigned => Meaning::Unsigned(unsigned),
        ArgumentFormat::Signed => Meaning::Signed((bits << unused).cast_signed() >> unused),
        ArgumentFormat::Hex => Meaning::Hex(unsigned),
        ArgumentFormat::Char => Meaning::Char(bits.to_le_bytes()[0]),
        _ => return None,
    })
}

/// Returns the name of an argument; `arg3` for the third if it has none, as in the kernel (`traceprobe_parse_probe_arg`
/// in `kernel/trace/trace_probe.c`).
pub(crate) fn name(argument: Option<&Argument>, at: usize) -> String {
    match argument {
        Some(argument) if !argument.name.is_empty() => text::printable(argument.name.as_bytes()),
        _ => format!("arg{}", at.saturating_add(1)),
    }
}

/// Appends a value as the kernel writes it: `%u`, `%d`, `0x%x`, `'%c'`, `"%s"`, `(fault)`
/// (`DEFINE_BASIC_PRINT_TYPE_FUNC` and `PRINT_TYPE_FUNC_NAME(string)` in `kernel/trace/trace_probe.c`), an
/// array as `{1,2}` (`print_probe_args` there). Unlike there, characters that control a terminal are escaped
/// and a bad pointer is `(fault)` for numbers as well. A missing value is `?`.
pub(crate) fn push_value(out: &mut String, argument: Option<&Argument>, value: &Value) {
    push_nested(out, argument, value, DEPTH);
}

fn push_nested(out: &mut String, argument: Option<&Argument>, value: &Value, depth: usize) {
    // Writing to a string succeeds.
    let _ = match meaning(argument, value) {
        Meaning::Unsigned(number) => write!(out, "{number}"),
        Meaning::Signed(number) => write!(out, "{number}"),
        Meaning::Hex(number) => write!(out, "{number:#x}"),
        Meaning::Char(byte) => {
            out.push('\'');
            push_char(out, byte);
            out.push('\'');
            Ok(())
        }
        Meaning::String(bytes) => {
            out.push('"');
            text::push_bytes(out, bytes);
            out.push('"');
            Ok(())
        }
        Meaning::Text(bytes) => {
            text::push_bytes(out, bytes);
            Ok(())
        }
        Meaning::List(_) if depth == 0 => out.write_str("{...}"),
        Meaning::List(values) => {
            for (at, value) in values.iter().enumerate() {
                out.push(if at == 0 { '{' } else { ',' });
                push_nested(out, argument, value, depth - 1);
            }
            out.write_str(if values.is_empty() { "{}" } else { "}" })
        }
        Meaning::Fault => out.write_str("(fault)"),
        Meaning::Missing => out.write_str("?"),
    };
}

/// Appends one byte as a character, or as `\xNN` if it isn't visible.
pub(crate) fn push_char(out: &mut String, byte: u8) {
    if byte.is_ascii() && !byte.is_ascii_control() {
        out.push(char::from(byte));
    } else {
        text::push_escaped(out, &[byte]);
    }
}

#[cfg(test)]
mod tests {
    use vmprobe_proto::v1::{FaultyPointer, ValueList};

    use super::*;

    fn value(kind: Kind) -> Value {
        Value { value: Some(kind) }
    }

    #[test]
    fn values_are_written_as_the_kernel_writes_them() {
        let list = |values| Kind::List(ValueList { values });
        let numbers = || vec![value(Kind::Unsigned(1)), value(Kind::Unsigned(0xffff))];
        for (format, size, kind, text) in [
            (
                ArgumentFormat::Unsigned,
                8,
                Kind::Unsigned(u64::MAX),
                "18446744073709551615",
            ),
            (ArgumentFormat::Unsigned, 1, Kind::Signed(-1), "255"),
            (ArgumentFormat::Signed, 4, Kind::Signed(-100), "-100"),
            (
                ArgumentFormat::Signed,
                4,
                Kind::Unsigned(0xffff_ff9c),
                "-100",
            ),
            (
                ArgumentFormat::Signed,
                8,
                Kind::Signed(i64::MIN),
                "-9223372036854775808",
            ),
            (
                ArgumentFormat::Hex,
                4,
                Kind::Unsigned(0xffff_ff9c),
                "0xffffff9c",
            ),
            (ArgumentFormat::Hex, 2, Kind::Signed(-2), "0xfffe"),
            (ArgumentFormat::Hex, 8, Kind::Unsigned(0), "0x0"),
            (ArgumentFormat::Char, 1, Kind::Unsigned(0x41), "'A'"),
            (ArgumentFormat::Char, 1, Kind::Unsigned(10), "'\\x0a'"),
            (
                ArgumentFormat::String,
                0,
                Kind::Text(b"/etc/passwd".into()),
                "\"/etc/passwd\"",
            ),
            (ArgumentFormat::String, 0, Kind::Text(vec![]), "\"\""),
            (
                ArgumentFormat::String,
                0,
                Kind::Fault(FaultyPointer {}),
                "(fault)",
            ),
            (
                ArgumentFormat::Text,
                0,
                Kind::Text(b"vfs_read+0x0/0x310".into()),
                "vfs_read+0x0/0x310",
            ),
            (
                ArgumentFormat::Hex,
                8,
                Kind::Fault(FaultyPointer {}),
                "(fault)",
            ),
            (ArgumentFormat::Hex, 2, list(numbers()), "{0x1,0xffff}"),
            (ArgumentFormat::Signed, 2, list(numbers()), "{1,-1}"),
            (ArgumentFormat::Signed, 2, list(vec![]), "{}"),
            (ArgumentFormat::Unspecified, 0, Kind::Signed(-7), "-7"),
            (ArgumentFormat::Unspecified, 0, Kind::Text(b"x".into()), "x"),
        ] {
            let argument = Argument {
                format: format.into(),
                size,
                ..Argument::default()
            };
            let mut out = String::new();
            push_value(&mut out, Some(&argument), &value(kind.clone()));
            assert_eq!(out, text, "{format:?} {kind:?}");
        }
        let mut out = String::new();
        push_value(&mut out, None, &Value { value: None });
        assert_eq!(out, "?");
    }

    #[test]
    fn lists_within_lists_end() {
        let mut nested = value(Kind::Unsigned(1));
        for _ in 0..1000 {
            nested = value(Kind::List(ValueList {
                values: vec![nested],
            }));
        }
        let mut out = String::new();
        push_value(&mut out, None, &nested);
        assert_eq!(out, "{{{{{{{{{...}}}}}}}}}");
    }

    #[test]
    fn an_argument_without_a_name_is_numbered() {
        assert_eq!(name(None, 2), "arg3");
        assert_eq!(name(Some(&Argument::default()), 0), "arg1");
    }
}
