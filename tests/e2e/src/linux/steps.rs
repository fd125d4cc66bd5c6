//! Steps of the guest's workload `tools` (tests/guest/src/workload/tools/): each is a line, answered by a report.

use serde_json::Value;

use super::guest::Guest;
use crate::test::{Failure, wrong};

/// Has the guest do a step. Returns its report, or why the guest's kernel refuses it.
///
/// # Errors
/// If the guest ends first.
pub async fn step(guest: &mut Guest, line: &str) -> Result<Result<Value, String>, Failure> {
    guest.say(line).await?;
    let report = guest.console.report("step").await?;
    Ok(match report["refused"].as_str() {
        Some(why) => Err(why.to_owned()),
        None => Ok(report),
    })
}

/// As [`step`], for steps that must not be refused.
///
/// # Errors
/// If it is refused, or the guest ends first.
pub async fn must(guest: &mut Guest, line: &str) -> Result<Value, Failure> {
    let answer = step(guest, line).await?;
    answer.map_err(|why| wrong!("the guest refused {line:?}: {why}"))
}
