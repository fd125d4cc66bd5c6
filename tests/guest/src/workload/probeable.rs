//! What the kernel itself takes a kprobe at.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::tracefs;
use crate::machine;
use crate::plan::Plan;

/// Probes of one event: each is compared with all others when it is added.
const MOST: usize = 256;
/// Makes the kernel's waits for all CPUs short; there is one at each probe that goes.
const EXPEDITED: &str = "/sys/kernel/rcu_expedited";
const NO_PROBES: &str = "/sys/kernel/debug/kprobes/blacklist";

/// The kernel's answers, a letter for each byte of a range.
const TAKEN: char = 't';
/// `EILSEQ`: the kernel decodes the function, and no instruction begins here (`can_probe` in
/// `arch/x86/kernel/kprobes/core.c`).
const NO_BOUNDARY: char = 'b';
const REFUSED: char = 'r';

/// Asks for a kprobe at each byte of the ranges. None is enabled, and none stays.
pub fn run(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    fs::write(EXPEDITED, "1")?;
    let mut answers = Map::new();
    for range in plan.at.split(',') {
        let (start, length) =
            parse(range).ok_or_else(|| io::Error::other(format!("odd range {range:?}")))?;
        answers.insert(format!("{start:#x}"), ask(start, length)?.into());
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

fn ask(start: u64, length: u64) -> io::Result<String> {
    let mut events = File::options()
        .append(true)
        .open(tracefs::path("kprobe_events"))?;
    let mut answers = String::new();
    let mut taken = 0;
    for address in start..start + length {
        let asked = events.write_all(format!("p:mine/x {address:#x}\n").as_bytes());
        let answer = match asked.map_err(|error| error.raw_os_error()) {
            Ok(()) => TAKEN,
            Err(Some(libc::EILSEQ)) => NO_BOUNDARY,
            Err(_) => REFUSED,
        };
        answers.push(answer);
        taken += usize::from(answer == TAKEN);
        if taken == MOST {
            tracefs::write("kprobe_events", "")?;
            taken = 0;
        }
    }
    tracefs::write("kprobe_events", "")?;
    Ok(answers)
}

/// Says where the kernel allows no kprobe: from where to where, what touches as one.
pub fn blacklist() -> io::Result<Value> {
    if !Path::new(NO_PROBES).exists() {
        machine::mount(c"debugfs", c"/sys/kernel/debug")?;
    }
    let text = fs::read_to_string(NO_PROBES)?;
    let ranges: Option<Vec<_>> = text.lines().map(bounds).collect();
    let ranges = ranges.ok_or_else(|| io::Error::other(format!("{NO_PROBES} has odd lines")))?;
    let ranges: Vec<_> = merge(ranges)
        .into_iter()
        .map(|(start, end)| format!("{start:x}-{end:x}"))
        .collect();
    Ok(json!({ "lines": text.lines().count(), "ranges": ranges.join(" ") }))
}

/// `0xffffffff81000000-0xffffffff81000010<tab>function`.
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
    fn lines_of_the_blacklist_are_read_and_joined_where_they_touch() {
        let line = "0xffffffff81000000-0xffffffff81000010\tfunction";
        let first = bounds(line).unwrap();
        assert_eq!(first, (0xffff_ffff_8100_0000, 0xffff_ffff_8100_0010));
        assert_eq!(bounds("nothing"), None);
        let ranges = vec![(8, 12), (0, 4), (4, 8), (20, 30), (22, 24)];
        assert_eq!(merge(ranges), [(0, 12), (20, 30)]);
    }
}
