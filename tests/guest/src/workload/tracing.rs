//! Any settings of the guest's own tracing.

use std::io;

use serde_json::{Value, json};

use super::tracefs;
use crate::plan::Plan;

/// Does `echo TEXT > FILE` in tracefs for each `FILE=TEXT` of the plan's `at`, in turn. They are separated
/// by `;`, and a comma in a text stands for a blank.
pub fn run(plan: &Plan) -> io::Result<Value> {
    tracefs::ready()?;
    let mut done = 0;
    for order in plan.at.split(';') {
        let (file, text) = order
            .split_once('=')
            .ok_or_else(|| io::Error::other(format!("{order:?} isn't FILE=TEXT")))?;
        tracefs::write(file, &text.replace(',', " "))?;
        done += 1;
    }
    Ok(json!({ "written": done }))
}
