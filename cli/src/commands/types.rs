//! `vmprobe types`: the types of the guest's kernel.

use serde_json::json;
use vmprobe_client::ClientError;
use vmprobe_client::spec::is_pattern;

use super::session::reach;
use crate::cli::Types;
use crate::failure::Failure;
use crate::output::print;

pub async fn types(types: &Types) -> Result<(), Failure> {
    let (client, vm) = reach(&types.target).await?;
    if !is_pattern(&types.name) {
        let declaration = client.describe_type(&vm, &types.name).await?;
        return match types.format.is_json() {
            true => print([json!({ "declaration": declaration }).to_string()]),
            false => print(declaration.lines()),
        };
    }
    let names = client.list_types(&vm, &types.name).await?;
    if names.is_empty() {
        let text = format!("no type of this kernel matches `{}`", types.name);
        return Err(ClientError::NotFound(text).into());
    }
    match types.format.is_json() {
        true => print(
            names
                .into_iter()
                .map(|name| json!({ "name": name }).to_string()),
        ),
        false => print(names),
    }
}
