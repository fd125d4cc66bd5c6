//! `vmprobe list`: the functions that can be probed.

use serde_json::json;
use vmprobe_client::ClientError;

use super::session::reach;
use crate::cli::ListFunctions;
use crate::failure::Failure;
use crate::output::{note, print};
use crate::tracing::{Function, functions};

pub async fn list(list: &ListFunctions) -> Result<(), Failure> {
    let (client, vm) = reach(&list.target).await?;
    let pattern = &list.pattern;
    let found = functions(&client, &vm, pattern).await?;
    if found.is_empty() {
        let text = match pattern.split_once(':') {
            Some((module, pattern)) => {
                format!("no function of module {module:?} matches `{pattern}`")
            }
            None => format!("no function of this kernel matches `{pattern}`"),
        };
        return Err(ClientError::NotFound(text).into());
    }
    if list.format.is_json() {
        return print(found.iter().map(json_line));
    }
    let shown = found
        .iter()
        .filter(|function| list.all || function.why_not.is_none());
    print(shown.map(text_line))?;
    let refused = found
        .iter()
        .filter(|function| function.why_not.is_some())
        .count();
    if refused > 0 && !list.all {
        note(format!(
            "{refused} of {} functions can't be probed: --all shows them with the reason",
            found.len()
        ));
    }
    Ok(())
}

fn text_line(function: &Function) -> String {
    match &function.why_not {
        None => function.name.clone(),
        Some(reason) => format!("{}\t{reason}", function.name),
    }
}

fn json_line(function: &Function) -> String {
    json!({
        "name": function.name,
        "address": format!("{:#x}", function.address),
        "can_be_probed": function.why_not.is_none(),
        "why_not": function.why_not,
    })
    .to_string()
}
