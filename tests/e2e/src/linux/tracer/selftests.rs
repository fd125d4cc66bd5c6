//! The kernel's own tests of definitions that it refuses, in the guest's kernel and in ours: the same lines, the same
//! columns.

use serde_json::{Value, json};
use vmprobe_client::spec;
use vmprobe_spec::testing::{Refused, SYNTAX_ERRORS};

use super::super::guest::{Guest, files};
use crate::context::Context;
use crate::test::{Failure, Needs, Test, TestResult, check, check_eq, pass_with, wrong};

pub const TESTS: &[Test] = &[Test {
    name: "a_definition_that_the_kernel_refuses_is_refused_at_the_same_column",
    ids: &["TR01", "TR09"],
    needs: Needs::Linux,
    run: refused,
}];

fn refused(cx: &Context) -> TestResult {
    cx.block_on(async {
        let mut guest = Guest::ready(cx, files::BZIMAGE_6_12, 1).await?;
        let (mut by_text, mut by_guest, mut by_others) = (0, 0, 0);
        for (marked, by) in SYNTAX_ERRORS {
            let other = match by {
                Refused::Never => continue,
                Refused::ByOtherProbes(other) => Some(other),
                _ => None,
            };
            if let Some(other) = other {
                let report = define(&mut guest, other).await?;
                check_eq!(report["refused"], json!([]), "the kernel's answer to `{other}`");
                guest.probe(other).await?;
            }
            let at = marked
                .find('^')
                .ok_or_else(|| wrong!("no mark in `{marked}`"))?;
            let line = marked.replacen('^', "", 1);
            let report = define(&mut guest, &line).await?;
            let log = report["refused"][0]["log"].as_str();
            let log = log.ok_or_else(|| wrong!("the kernel takes `{line}`"))?;
            let theirs = column(log).ok_or_else(|| wrong!("no column in {log:?}"))?;
            check_eq!(theirs, at + 1, "the kernel's column of `{line}`");
            match spec::parse(&line) {
                Err(error) => {
                    check!(matches!(by, Refused::Here(_)), "`{line}`: {error}");
                    check_eq!(error.column, theirs, "our column of `{line}`");
                    by_text += 1;
                }
                Ok(_) => {
                    let error = guest.refusal(&line).await?;
                    check!(!matches!(by, Refused::Here(_)), "`{line}` is read: {error}");
                    by_guest += u32::from(other.is_none());
                }
            }
            if other.is_some() {
                by_others += 1;
                define(&mut guest, "-:kprobes/testevent").await?;
                guest.remove(&["kprobes/testevent"]).await?;
            }
        }
        guest.finish().await?;
        pass_with(format!(
            "{by_text} refused by their text, {by_guest} by the guest's kernel, {by_others} by probes of their name"
        ))
    })
}

/// Has the guest make an event of its own.
async fn define(guest: &mut Guest, line: &str) -> Result<Value, Failure> {
    let line = line.replace(' ', ",");
    guest.work(&format!("define at={line}")).await
}

/// The column of the mark below the command, from 1, in an entry of the guest's `error_log`.
fn column(log: &str) -> Option<usize> {
    const COMMAND: &str = "  Command: ";
    let mut lines = log.lines();
    lines.find(|line| line.starts_with(COMMAND))?;
    let mark = lines.next()?.find('^')?;
    (mark + 1).checked_sub(COMMAND.len())
}
