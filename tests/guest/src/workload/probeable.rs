//! The places where the kernel itself takes a kprobe.

use std::fs::{self, File};
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{debugfs, tracefs};
use crate::plan::Plan;

/// The most probes of one event: the kernel compares each new one with all others.
const MOST: usize = 256;
/// Makes the kernel's waits for all CPUs short; there is one at each removal of a probe.
const EXPEDITED: &str = "/sys/kernel/rcu_expedited";
/// The event's first probe. As the event exists then, the refusal of another probe doesn't remove the event.
const FIRST: &str = "p:mine/x __x64_sys_getppid at=\\0";
const NO_PROBES: &str = "kprobes/blacklist";

/// The kernel's answer for a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Taken,
    /// `EILSEQ`: no instruction begins here (`can_probe` in `arch/x86/kernel/kprobes/core.c`), or it is
    /// inside an ftrace site (`check_ftrace_location` in `kernel/kprobes.c`).
    NoBoundary,
    /// `EINVAL`
    Refused,
    /// `EOPNOTSUPP`
    Unsupported,
}

/// Asks for a kprobe at each byte of the ranges. None is enabled, and none stays.
pub fn run(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    fs::write(EXPEDITED, "1")?;
    let mut answers = Map::new();
    for range in plan.at.split(',') {
        let (start, length) =
            parse(range).ok_or_else(|| io::Error::other(format!("odd range {range:?}")))?;
        answers.insert(format!("{start:#x}"), encode(&ask(start, length)?).into());
    }
    fs::write(EXPEDITED, "0")?;
    Ok(json!({ "answers": answers }))
}

/// An address and a length: `0xffffffff81000000+0x120`.
fn parse(range: &str) -> Option<(u64, u64)> {
    let (start, length) = range.split_once("+0x")?;
    let start = u64::from_str_radix(start.strip_prefix("0x")?, 16).ok()?;
    Some((start, u64::from_str_radix(length, 16).ok()?))
}

fn ask(start: u64, length: u64) -> io::Result<Vec<Answer>> {
    let mut events = File::options()
        .append(true)
        .open(tracefs::path("kprobe_events"))?;
    let mut answers = Vec::new();
    let mut taken = 0;
    tracefs::append("kprobe_events", FIRST)?;
    for at in start..start + length {
        // The kernel takes two probes of an event for the same one if neither has a symbol and their arguments are
        // equal (`trace_kprobe_has_same_kprobe` in `kernel/trace/trace_kprobe.c`).
        let asked = events.write_all(format!("p:mine/x {at:#x} at=\\{at:#x}\n").as_bytes());
        let answer = match asked.map_err(|error| error.raw_os_error()) {
            Ok(()) => Answer::Taken,
            Err(Some(libc::EILSEQ)) => Answer::NoBoundary,
            Err(Some(libc::EINVAL)) => Answer::Refused,
            Err(Some(libc::EOPNOTSUPP)) => Answer::Unsupported,
            Err(other) => {
                let text = format!("{at:#x}: the kernel says {other:?}");
                return Err(io::Error::other(text));
            }
        };
        answers.push(answer);
        taken += usize::from(answer == Answer::Taken);
        if taken == MOST {
            tracefs::write("kprobe_events", FIRST)?;
            taken = 0;
        }
    }
    tracefs::write("kprobe_events", "")?;
    Ok(answers)
}

/// Encodes the answers: a letter for each, but the number of answers in a row for those that it is no boundary:
/// `t2tr4`.
fn encode(answers: &[Answer]) -> String {
    let mut text = String::new();
    for run in answers.chunk_by(|one, next| one == next) {
        let letter = match run[0] {
            Answer::Taken => "t",
            Answer::Refused => "r",
            Answer::Unsupported => "u",
            Answer::NoBoundary => {
                text += &run.len().to_string();
                continue;
            }
        };
        text += &letter.repeat(run.len());
    }
    text
}

/// Reports where the kernel allows no kprobe: starts and ends, with adjacent ranges merged.
pub fn blacklist() -> io::Result<Value> {
    let text = debugfs::read(NO_PROBES)?;
    let ranges: Option<Vec<_>> = text.lines().map(bounds).collect();
    let ranges = ranges.ok_or_else(|| io::Error::other(format!("{NO_PROBES} has odd lines")))?;
    let ranges: Vec<_> = merge(ranges)
        .into_iter()
        .map(|(start, end)| format!("{start:x}-{end:x}"))
        .collect();
    Ok(json!({ "lines": text.lines().count(), "ranges": ranges.join(" ") }))
}

/// Parses `ffffffff81000000-ffffffff81000010<tab>function`.
fn bounds(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    Some((number(start)?, number(end)?))
}

fn merge(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some((_, last)) if *last >= start => *last = end.max(*last),
            _ => merged.push((start, end)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_an_address_and_a_length() {
        assert_eq!(
            parse("0xffffffff81000000+0x120"),
            Some((0xffff_ffff_8100_0000, 0x120))
        );
        assert_eq!(parse("vfs_read+0x10"), None);
    }

    #[test]
    fn answers_are_letters_and_what_is_no_boundary_is_counted() {
        use Answer::{NoBoundary, Refused, Taken, Unsupported};
        let answers = [
            Taken,
            NoBoundary,
            NoBoundary,
            Taken,
            Refused,
            Refused,
            Unsupported,
            NoBoundary,
        ];
        assert_eq!(encode(&answers), "t2trru1");
    }

    #[test]
    fn lines_of_the_blacklist_are_read_and_joined_where_they_touch() {
        let line = "0xffffffff81000000-0xffffffff81000010\tfunction";
        let first = bounds(line).unwrap();
        assert_eq!(first, (0xffff_ffff_8100_0000, 0xffff_ffff_8100_0010));
        assert_eq!(bounds("nothing"), None);
        let ranges = vec![(8, 12), (0, 4), (4, 8), (20, 30), (22, 24)];
        assert_eq!(merge(ranges), [(0, 12), (20, 30)]);
    }
}
