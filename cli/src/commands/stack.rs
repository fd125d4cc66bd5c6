//! `vmprobe stack`: the most frequent stacks.

use std::io;

use serde_json::json;
use vmprobe_client::v1::{Event, Probe};
use vmprobe_trace_formats::{Guest, Stacks, Writer};

use crate::cli::Stack;
use crate::failure::Failure;
use crate::output::{note, print};
use crate::tracing::{Wanted, follow};

pub async fn stack(stack: &Stack) -> Result<(), Failure> {
    let wanted = Wanted::read(&stack.traced)?.with_stacks();
    let make = |guest: &Guest| Ok(Counted(Stacks::new(guest)));
    let until = &stack.traced.until;
    let (counted, totals) =
        follow(&stack.target, &wanted, until, true, make, Failure::Output).await?;
    let lines: Vec<String> = counted.0.lines().collect();
    let stacks = by_frequency(&lines);
    match stack.format.is_json() {
        true => print(json_lines(&stacks, stack.top))?,
        false => print(most_frequent(&stacks, stack.top))?,
    }
    totals.tell();
    if lines.is_empty() && totals.events > 0 {
        note(
            "none of these events has a stack: register the probes with one, as in 'p vfs_read stack'",
        );
    }
    Ok(())
}

struct Counted(Stacks);

impl Writer for Counted {
    fn begin(&mut self, _: &[Probe]) -> io::Result<()> {
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.0.add(event);
        Ok(())
    }

    fn lost(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns how often each stack occurred, the most frequent first. `folded` is `comm;outermost;...;innermost COUNT` a
/// line.
fn by_frequency(folded: &[String]) -> Vec<(u64, &str)> {
    let parts = folded.iter().filter_map(|line| {
        let (stack, count) = line.rsplit_once(' ')?;
        Some((count.parse::<u64>().ok()?, stack))
    });
    let mut stacks: Vec<(u64, &str)> = parts.collect();
    // Stacks of the same count stay in the order of their text.
    stacks.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    stacks
}

/// Returns the first stacks: how often, which task, and the frames from the innermost on.
fn json_lines(stacks: &[(u64, &str)], top: usize) -> Vec<String> {
    let value = |(count, stack): &(u64, &str)| {
        let mut frames = stack.split(';');
        let task = frames.next();
        let frames: Vec<&str> = frames.rev().collect();
        json!({ "count": count, "comm": task, "frames": frames }).to_string()
    };
    stacks.iter().take(top).map(value).collect()
}

/// Returns the first stacks: how often and by which task, then a line for each frame from the innermost on, as ftrace
/// has them.
fn most_frequent(stacks: &[(u64, &str)], top: usize) -> Vec<String> {
    let all: u64 = stacks.iter().map(|(count, _)| count).sum();
    let mut lines = Vec::new();
    for (count, stack) in stacks.iter().take(top) {
        let mut frames = stack.split(';');
        let task = frames.next().unwrap_or("?");
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let tenths = u128::from(*count) * 1000 / u128::from(all.max(1));
        lines.push(format!(
            "{}, {}.{} %, in {task}",
            times(*count),
            tenths / 10,
            tenths % 10
        ));
        lines.extend(frames.rev().map(|frame| format!(" => {frame}")));
    }
    if let Some(more @ 1..) = stacks.len().checked_sub(top) {
        let rest: u64 = stacks.iter().skip(top).map(|(count, _)| count).sum();
        lines.push(String::new());
        let stacks = if more == 1 { "stack" } else { "stacks" };
        lines.push(format!("{} in {more} other {stacks}", times(rest)));
    }
    lines
}

fn times(count: u64) -> String {
    let times = if count == 1 { "time" } else { "times" };
    format!("{count} {times}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_stack_comes_first_innermost_frame_first() {
        let folded = ["cat;main;read 1", "sh;main;open 3", "a b;x 1", "c;y 1"].map(str::to_owned);
        assert_eq!(
            most_frequent(&by_frequency(&folded), 2),
            [
                "3 times, 50.0 %, in sh",
                " => open",
                " => main",
                "",
                "1 time, 16.6 %, in cat",
                " => read",
                " => main",
                "",
                "2 times in 2 other stacks",
            ]
        );
        assert!(most_frequent(&[], 5).is_empty());
        assert_eq!(
            json_lines(&by_frequency(&folded), 1),
            [r#"{"count":3,"comm":"sh","frames":["open","main"]}"#]
        );
    }
}
