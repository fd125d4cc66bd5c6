//! `vmprobe symbols`

use vmprobe_client::ClientError;

use super::session::reach;
use crate::cli::SymbolsArgs;
use crate::failure::Failure;
use crate::output::{note, print};
use crate::render;

pub async fn symbols(symbols: SymbolsArgs) -> Result<(), Failure> {
    let (client, vm) = reach(&symbols.target).await?;
    if let Some(address) = symbols.address {
        let (symbol, offset) = client.resolve_address(&vm, address).await?;
        return if symbols.format.is_json() {
            let mut value = render::symbol_json(&symbol);
            value["offset"] = offset.into();
            print([value.to_string()])
        } else {
            print([format!("{}+{offset:#x}", symbol.name)])
        };
    }
    let pattern = symbols.pattern.unwrap_or_default();
    let (found, truncated) = client.lookup_symbols(&vm, &pattern, symbols.limit).await?;
    if found.is_empty() {
        let similar = client.similar_symbols(&vm, &pattern).await?;
        let hint = match similar[..] {
            [] => String::new(),
            _ => format!("; did you mean {}?", similar.join(", ")),
        };
        let text = format!("no symbol of this kernel matches `{pattern}`{hint}");
        return Err(ClientError::NotFound(text).into());
    }
    if symbols.format.is_json() {
        print(
            found
                .iter()
                .map(|symbol| render::symbol_json(symbol).to_string()),
        )?;
    } else {
        print(found.iter().map(render::symbol_line))?;
    }
    if truncated {
        note(format!(
            "only the first {} are shown: raise --limit for more",
            found.len()
        ));
    }
    Ok(())
}
