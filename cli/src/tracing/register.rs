//! Registering the probes of a trace.

use std::collections::HashSet;

use vmprobe_client::spec::{SpecError, is_enabled, is_pattern};
use vmprobe_client::v1::probe_spec::{Kind, Place};
use vmprobe_client::v1::{Probe, ProbeSpec, SymbolPlace};
use vmprobe_client::{Client, ClientError};

use super::definitions::Definition;
use super::functions::functions;
use crate::failure::Failure;
use crate::output::note;

/// How many functions that match a pattern may turn out not to be probed only when that is tried.
const REFUSED_MAX: usize = 64;

/// Characters of a made-up name, without what makes it unique.
const NAME_CHARS: usize = 56;

/// Registered probes, none of which is enabled yet.
#[derive(Debug, Default)]
pub struct Registered {
    pub probes: Vec<Probe>,
    /// The ids of those that are to be enabled.
    pub enable: Vec<u64>,
}

/// One probe of the batch.
struct Draft {
    spec: ProbeSpec,
    /// The definition's text.
    text: String,
    /// It is one of many that match a pattern, so it may be left out.
    may_go: bool,
}

/// Registers the probes of all definitions without enabling them. A pattern stands for all functions that
/// match and can be probed; a note tells how many can't.
///
/// # Errors
/// The server refuses one, or no function matches a pattern. Then none is registered.
pub async fn register(
    client: &Client,
    vm: &str,
    definitions: &[Definition],
) -> Result<Registered, Failure> {
    if definitions.is_empty() {
        return Ok(Registered::default());
    }
    let mut drafts = Vec::new();
    for definition in definitions {
        drafts.extend(expand(client, vm, definition).await?);
    }
    let there = client.list_probes(vm).await?;
    name_all(&mut drafts, there.into_iter().map(|probe| probe.name));

    let mut left = REFUSED_MAX;
    loop {
        let specs = drafts.iter().map(|draft| ProbeSpec {
            enabled: Some(false),
            ..draft.spec.clone()
        });
        let error = match client.register_probes(vm, specs.collect()).await {
            Ok(probes) => {
                let pairs = probes.iter().zip(&drafts);
                let enable = pairs.filter(|(_, draft)| is_enabled(&draft.spec));
                return Ok(Registered {
                    enable: enable.map(|(probe, _)| probe.id).collect(),
                    probes,
                });
            }
            Err(error) => error,
        };
        match refused(&error) {
            Some(at) if left > 0 && drafts.get(at).is_some_and(|draft| draft.may_go) => {
                left -= 1;
                let draft = drafts.remove(at);
                if !drafts.iter().any(|other| other.text == draft.text) {
                    return Err(error.into());
                }
            }
            _ => return Err(with_text(error, &drafts)),
        }
    }
}

/// The probes that a definition stands for.
async fn expand(client: &Client, vm: &str, definition: &Definition) -> Result<Vec<Draft>, Failure> {
    let draft = |spec: ProbeSpec, may_go| Draft {
        spec,
        text: definition.text.clone(),
        may_go,
    };
    let spec = &definition.spec;
    let place = match &spec.place {
        Some(Place::Symbol(place)) if is_pattern(&place.symbol) => place,
        _ => return Ok(vec![draft(spec.clone(), false)]),
    };
    let pattern = &place.symbol;
    let matching = functions(client, vm, pattern).await?;
    let all = matching.len();
    // Of several names of one function, one is enough.
    let mut addresses = HashSet::new();
    let mut can = matching;
    can.retain(|function| function.why_not.is_none() && addresses.insert(function.address));
    if can.is_empty() || !place.module.is_empty() {
        return Err(Failure::NoFunction {
            pattern: definition.text.clone(),
        });
    }
    if all > can.len() {
        note(format!(
            "{pattern}: {} of {all} functions; `vmprobe list --all '{pattern}'` tells why not the others",
            can.len()
        ));
    }
    let drafts = can.into_iter().map(|function| {
        let name = match spec.name.split_once('/') {
            _ if spec.name.is_empty() => String::new(),
            Some((group, event)) => format!("{group}/{event}_{}", identifier(&function.name)),
            None => format!("{}/{}", spec.name, identifier(&function.name)),
        };
        let symbol = SymbolPlace {
            symbol: function.name,
            ..place.clone()
        };
        draft(
            ProbeSpec {
                name,
                place: Some(Place::Symbol(symbol)),
                ..spec.clone()
            },
            true,
        )
    });
    Ok(drafts.collect())
}

/// Gives those without a name the kernel's default one, such as `p_vfs_read_0` (`__trace_kprobe_create` in
/// `kernel/trace/trace_kprobe.c`), with a number behind it where that is taken.
fn name_all(drafts: &mut [Draft], taken: impl IntoIterator<Item = String>) {
    let mut taken: HashSet<String> = taken.into_iter().collect();
    let given = drafts.iter().map(|draft| draft.spec.name.clone());
    taken.extend(given.filter(|name| !name.is_empty()));
    for Draft { spec, .. } in drafts {
        if !spec.name.is_empty() {
            continue;
        }
        let base: String = default_name(spec).chars().take(NAME_CHARS).collect();
        let mut name = base.clone();
        let mut number = 2;
        while !taken.insert(name.clone()) {
            name = format!("{base}_{number}");
            number += 1;
        }
        spec.name = name;
    }
}

fn default_name(spec: &ProbeSpec) -> String {
    let letter = match spec.kind {
        Some(Kind::Return(_)) => 'r',
        Some(Kind::Watchpoint(_)) => 'w',
        _ => 'p',
    };
    match &spec.place {
        Some(Place::Symbol(place)) => {
            format!("{letter}_{}_{}", identifier(&place.symbol), place.offset)
        }
        Some(Place::Address(address)) => format!("{letter}_{address:#x}"),
        None => letter.to_string(),
    }
}

/// What a name takes: the compiler's dots become `_`.
fn identifier(symbol: &str) -> String {
    let belongs = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let character = |c| if belongs(c) { c } else { '_' };
    symbol.chars().map(character).collect()
}

/// Which probe of the batch the server finds fault with: `probes[17]` in the fields that it names, or at the
/// end of its message.
fn refused(error: &ClientError) -> Option<usize> {
    let message = error.to_string();
    let field = match error {
        ClientError::InvalidArgument { fields, .. } => fields.first().map(String::as_str),
        _ => None,
    };
    let text = match field {
        Some(field) => field,
        None => message.rsplit_once('(')?.1,
    };
    let number = text.strip_prefix("probes[")?.split(']').next()?;
    number.parse().ok()
}

/// The error with the definition, and a caret under the argument that the server can't make sense of.
fn with_text(error: ClientError, drafts: &[Draft]) -> Failure {
    match pointed(&error, drafts) {
        Some(error) => error.into(),
        None => error.into(),
    }
}

/// The server's message about an argument is "`TEXT`, column N: reason", and `fields` has which it is.
fn pointed(error: &ClientError, drafts: &[Draft]) -> Option<SpecError> {
    let ClientError::InvalidArgument { fields, message } = error else {
        return None;
    };
    let draft = match refused(error) {
        Some(at) => drafts.get(at)?,
        None => return None,
    };
    let field = fields.first()?.split_once("].")?.1;
    let part = match field.strip_prefix("arguments[") {
        Some(number) => {
            let number: usize = number.strip_suffix(']')?.parse().ok()?;
            draft.spec.arguments.get(number)?
        }
        None if field == "filter" => &draft.spec.filter,
        None => return None,
    };
    let rest = message.strip_prefix('`')?.strip_prefix(&**part)?;
    let (column, reason) = rest.strip_prefix("`, column ")?.split_once(": ")?;
    let column: usize = column.parse().ok()?;
    // A filter from another argument isn't in the definition's text.
    let (text, start) = match find_word(&draft.text, part) {
        Some(start) => (&draft.text, draft.text.get(..start)?.chars().count()),
        None => (part, 0),
    };
    Some(SpecError {
        text: text.clone(),
        line: None,
        column: start + column,
        length: 1,
        reason: reason.to_owned(),
        kernel: None,
    })
}

/// Where a part of a text begins that has a space before it.
fn find_word(text: &str, part: &str) -> Option<usize> {
    let mut found = text.match_indices(part).map(|(at, _)| at);
    found.find(|at| {
        text.get(..*at)
            .is_some_and(|before| before.ends_with(char::is_whitespace))
    })
}

#[cfg(test)]
mod tests {
    use vmprobe_client::spec;

    use super::*;

    fn draft(text: &str) -> Draft {
        Draft {
            spec: spec::parse(text).unwrap(),
            text: text.to_owned(),
            may_go: false,
        }
    }

    #[test]
    fn a_probe_without_a_name_gets_the_kernels_if_that_is_free() {
        let mut drafts = [
            "p vfs_read",
            "p vfs_read",
            "r vfs_read.cold",
            "p:mine vfs_read",
            "p vfs_read+0x10",
            "0xffffffff81000000",
        ]
        .map(draft);
        name_all(&mut drafts, ["r_vfs_read_cold_0".to_owned()]);
        let names: Vec<&str> = drafts.iter().map(|draft| &*draft.spec.name).collect();
        assert_eq!(
            names,
            [
                "p_vfs_read_0",
                "p_vfs_read_0_2",
                "r_vfs_read_cold_0_2",
                "mine",
                "p_vfs_read_16",
                "p_0xffffffff81000000",
            ]
        );
    }

    fn invalid(field: &str, message: &str) -> ClientError {
        ClientError::InvalidArgument {
            fields: vec![field.to_owned()],
            message: message.to_owned(),
        }
    }

    #[test]
    fn the_refused_probe_is_found_in_fields_or_message() {
        for (error, at) in [
            (invalid("probes[17]", "no"), Some(17)),
            (invalid("probes[2].arguments[1]", "no"), Some(2)),
            (
                ClientError::FailedPrecondition("freed (probes[3])".into()),
                Some(3),
            ),
            (ClientError::FailedPrecondition("freed".into()), None),
            (invalid("vm", "no"), None),
        ] {
            assert_eq!(refused(&error), at, "{error:?}");
        }
    }

    #[test]
    fn what_the_server_cannot_make_sense_of_has_a_caret_in_the_definition() {
        let drafts = [draft("p vfs_read a=%di file->f_x")];
        let message = "`file->f_x`, column 7: struct file has no member f_x";
        let error = invalid("probes[0].arguments[1]", message);
        let text = with_text(error, &drafts).to_string();
        let expected = "\
error: struct file has no member f_x
  |
1 | p vfs_read a=%di file->f_x
  |                        ^";
        assert_eq!(text, expected);
        let other = invalid("probes[0].place", "something else");
        assert_eq!(with_text(other, &drafts).to_string(), "something else");
    }

    #[test]
    fn a_filter_from_elsewhere_is_shown_alone() {
        let mut drafts = [draft("p vfs_read")];
        drafts[0].spec.filter = "nobody == 1".into();
        let message = "`nobody == 1`, column 1: no such argument";
        let text = with_text(invalid("probes[0].filter", message), &drafts).to_string();
        assert!(text.ends_with("1 | nobody == 1\n  | ^"), "{text}");
    }
}
