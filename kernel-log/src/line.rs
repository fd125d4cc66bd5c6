//! A line taken apart: what the kernel's log puts in front, and the text.

use std::time::Duration;

/// The task or CPU that printed a line (`printk_caller_id` in `kernel/printk/printk.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A task, by its number: `T1`.
    Task(u32),
    /// A CPU while it served an interrupt: `C0`.
    Cpu(u32),
}

/// A line of a console, taken apart.
///
/// The prefix is `[    1.234567]`, the time since boot, if `printk.time` is on; then `[    T1]`, the caller, if
/// the kernel has `CONFIG_PRINTK_CALLER` (`print_time` and `print_caller` in `kernel/printk/printk.c`). In front of
/// both `<6>`, the level, is found where a program copies the log from `/proc/kmsg`.
///
/// A program may have left the console within a line, such as a shell after its prompt. So a time is looked for
/// behind other text as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The level, 0 (emergency) to 7 (debug), with the facility in the bits above.
    pub level: Option<u16>,
    /// The time since boot.
    pub at: Option<Duration>,
    /// The task or CPU that printed it.
    pub caller: Option<Caller>,
    /// The rest, with its own indentation.
    pub text: &'a str,
}

impl<'a> Line<'a> {
    /// Takes a line apart. A line without a prefix is all text.
    #[must_use]
    pub fn parse(line: &'a str) -> Self {
        let (level, rest) = level(line);
        let stamped = stamp(rest).or_else(|| {
            let starts = rest.match_indices(" [").map(|(at, _)| at + 1);
            starts.take(SEARCHED).find_map(|at| stamp(&rest[at..]))
        });
        let (at, rest) = stamped.map_or((None, rest), |(at, rest)| (Some(at), rest));
        let (caller, rest) =
            caller(rest).map_or((None, rest), |(caller, rest)| (Some(caller), rest));
        let text = if at.is_some() || caller.is_some() {
            rest.strip_prefix(' ').unwrap_or(rest)
        } else {
            rest
        };
        Self {
            level,
            at,
            caller,
            text: text.trim_end(),
        }
    }
}

/// Places of a line at which a time is looked for.
const SEARCHED: usize = 8;

fn level(line: &str) -> (Option<u16>, &str) {
    let parts = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    let Some((digits, rest)) = parts.filter(|(digits, _)| is_number(digits, 3)) else {
        return (None, line);
    };
    (digits.parse().ok(), rest)
}

/// Splits off `[%5lu.%06lu]` in front of a text.
fn stamp(text: &str) -> Option<(Duration, &str)> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    let (seconds, micros) = inside.split_once('.')?;
    let digits = seconds.trim_start_matches(' ');
    let padded = seconds.len() == 5 || seconds.len() > 5 && digits.len() == seconds.len();
    if !padded || !is_number(digits, 19) || micros.len() != 6 || !is_number(micros, 6) {
        return None;
    }
    let micros: u32 = micros.parse().ok()?;
    let at = Duration::new(digits.parse().ok()?, micros * 1000);
    Some((at, rest))
}

/// Splits off `[%6s]` in front of a text, of `T` or `C` and a number.
fn caller(text: &str) -> Option<(Caller, &str)> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    if inside.len() < 6 {
        return None;
    }
    let inside = inside.trim_start_matches(' ');
    let number = |digits: &str| is_number(digits, 10).then(|| digits.parse().ok())?;
    let caller = match inside.split_at_checked(1)? {
        ("T", digits) => Caller::Task(number(digits)?),
        ("C", digits) => Caller::Cpu(number(digits)?),
        _ => return None,
    };
    Some((caller, rest))
}

fn is_number(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_a_line_is_taken_apart() {
        let micros = |micros| Some(Duration::from_micros(micros));
        let table = [
            ("[    1.234567] text", None, micros(1_234_567), None, "text"),
            ("[    0.000000]   in  ", None, micros(0), None, "  in"),
            (
                "<6>[   12.000001] text",
                Some(6),
                micros(12_000_001),
                None,
                "text",
            ),
            ("<30>text", Some(30), None, None, "text"),
            (
                "[123456.000000] text",
                None,
                micros(123_456_000_000),
                None,
                "text",
            ),
            (
                "[    1.000000][    T1] text",
                None,
                micros(1_000_000),
                Some(Caller::Task(1)),
                "text",
            ),
            (
                "[    1.000000][   C12]  x",
                None,
                micros(1_000_000),
                Some(Caller::Cpu(12)),
                " x",
            ),
            (
                "[    1.000000][T1234567] x",
                None,
                micros(1_000_000),
                Some(Caller::Task(1_234_567)),
                "x",
            ),
            ("[    T1] text", None, None, Some(Caller::Task(1)), "text"),
            ("[    1.000000]", None, micros(1_000_000), None, ""),
            (
                "~ # [    1.500000] BUG",
                None,
                micros(1_500_000),
                None,
                "BUG",
            ),
            ("text", None, None, None, "text"),
            ("[1.234567] text", None, None, None, "[1.234567] text"),
            ("[    1.2345] text", None, None, None, "[    1.2345] text"),
            (
                "[    x.234567] text",
                None,
                None,
                None,
                "[    x.234567] text",
            ),
            ("[T1] text", None, None, None, "[T1] text"),
            ("[ BUG: x ]", None, None, None, "[ BUG: x ]"),
            ("[      ] x", None, None, None, "[      ] x"),
            ("<6789>x", None, None, None, "<6789>x"),
            (
                "[99999999999999999999.000000] x",
                None,
                None,
                None,
                "[99999999999999999999.000000] x",
            ),
            ("", None, None, None, ""),
        ];
        for (line, level, at, caller, text) in table {
            let expected = Line {
                level,
                at,
                caller,
                text,
            };
            assert_eq!(Line::parse(line), expected, "{line:?}");
        }
    }
}
