//! Registering the probes of a trace.

use std::collections::HashSet;

use vmprobe_client::spec::{SpecError, is_pattern};
use vmprobe_client::v1::ProbeSpec;
use vmprobe_client::v1::probe_spec::{Kind, Place};
use vmprobe_client::{Client, ClientError, DisabledProbes, ProbeBatch, Session};

use super::definitions::Definition;
use crate::failure::Failure;

/// Characters of a made-up name, without what makes it unique.
const NAME_CHARS: usize = 56;

/// Registers the probes of all definitions in a session, without enabling them. Those without a name get the kernel's.
///
/// # Errors
/// The server refuses one. Then none is registered.
pub async fn register(
    client: &Client,
    vm: &str,
    session: &Session,
    definitions: &[Definition],
) -> Result<DisabledProbes, Failure> {
    if definitions.is_empty() {
        return Ok(DisabledProbes::default());
    }
    let mut definitions = definitions.to_vec();
    let there = client.list_probes(vm).await?;
    name_all(&mut definitions, there.into_iter().map(|probe| probe.name));
    let registered = session.register_disabled(specs(&definitions)).await;
    registered.map_err(|error| with_text(error, &definitions))
}

/// Registers the probes of all definitions, to stay.
///
/// # Errors
/// The server refuses one. Then none is registered.
pub async fn register_as_asked(
    client: &Client,
    vm: &str,
    definitions: &[Definition],
) -> Result<ProbeBatch, Failure> {
    let batch = client.register_batch(vm, specs(definitions)).await;
    batch.map_err(|error| with_text(error, definitions))
}

fn specs(definitions: &[Definition]) -> Vec<ProbeSpec> {
    let specs = definitions.iter().map(|definition| &definition.spec);
    specs.cloned().collect()
}

fn has_pattern(spec: &ProbeSpec) -> bool {
    matches!(&spec.place, Some(Place::Symbol(place)) if is_pattern(&place.symbol))
}

/// Gives definitions without a name the kernel's default one, such as `p_vfs_read_0` (`__trace_kprobe_create` in
/// `kernel/trace/trace_kprobe.c`), with a number behind it where that is taken. A pattern has the letter only: the
/// server appends the function's name, such as in `p.vfs_read`.
pub fn name_all(definitions: &mut [Definition], taken: impl IntoIterator<Item = String>) {
    // The names of a pattern's probes begin with its own name.
    let stem = |name: String| match name.split_once('.') {
        Some((stem, _)) => [stem.to_owned(), name],
        None => [String::new(), name],
    };
    let given = definitions
        .iter()
        .map(|definition| definition.spec.name.clone());
    let names = given.collect::<Vec<String>>().into_iter().chain(taken);
    let mut taken: HashSet<String> = names.flat_map(stem).collect();
    for Definition { spec, .. } in definitions {
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
        Some(Place::Symbol(place)) if !has_pattern(spec) => {
            format!("{letter}_{}_{}", identifier(&place.symbol), place.offset)
        }
        Some(Place::Address(address)) => format!("{letter}_{address:#x}"),
        _ => letter.to_string(),
    }
}

/// Makes a part of a name from a symbol: the compiler's dots become `_`.
fn identifier(symbol: &str) -> String {
    let belongs = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let character = |c| if belongs(c) { c } else { '_' };
    symbol.chars().map(character).collect()
}

/// Returns the error with the definition, and a caret under the argument that the server can't make sense of.
fn with_text(error: ClientError, definitions: &[Definition]) -> Failure {
    match pointed(&error, definitions) {
        Some(error) => error.into(),
        None => error.into(),
    }
}

/// Finds the place of an error in the definition. The server names the field, such as `probes[17].arguments[1]`, and
/// its message about it is "`TEXT`, column N: reason".
fn pointed(error: &ClientError, definitions: &[Definition]) -> Option<SpecError> {
    let ClientError::InvalidArgument { fields, message } = error else {
        return None;
    };
    let (number, field) = fields.first()?.strip_prefix("probes[")?.split_once("].")?;
    let definition = definitions.get(number.parse::<usize>().ok()?)?;
    let part = match field.strip_prefix("arguments[") {
        Some(number) => {
            let number: usize = number.strip_suffix(']')?.parse().ok()?;
            definition.spec.arguments.get(number)?
        }
        None if field == "filter" => &definition.spec.filter,
        None => return None,
    };
    let rest = message.strip_prefix('`')?.strip_prefix(&**part)?;
    let (column, reason) = rest.strip_prefix("`, column ")?.split_once(": ")?;
    let column: usize = column.parse().ok()?;
    // A filter from another argument isn't in the definition's text.
    let (text, start) = match find_word(&definition.text, part) {
        Some(start) => (
            &definition.text,
            definition.text.get(..start)?.chars().count(),
        ),
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

/// Returns where a part of a text begins that has a space before it.
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

    fn defined(text: &str) -> Definition {
        Definition {
            spec: spec::parse(text).unwrap(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_probe_without_a_name_gets_the_kernels_if_that_is_free() {
        let mut definitions = [
            "p vfs_read",
            "p vfs_read",
            "r vfs_read.cold",
            "p:mine vfs_read",
            "p vfs_read+0x10",
            "0xffffffff81000000",
        ]
        .map(defined);
        name_all(&mut definitions, ["r_vfs_read_cold_0".to_owned()]);
        let names: Vec<&str> = definitions
            .iter()
            .map(|definition| &*definition.spec.name)
            .collect();
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
    fn definitions_without_a_name_get_one_that_nobody_has() {
        let mut definitions = ["p tcp_*", "p:net tcp_*", "p vfs_read"].map(defined);
        name_all(&mut definitions, ["p.tcp_close".to_owned()]);
        let names: Vec<&str> = definitions
            .iter()
            .map(|definition| &*definition.spec.name)
            .collect();
        assert_eq!(names, ["p_2", "net", "p_vfs_read_0"]);
    }

    #[test]
    fn what_the_server_cannot_make_sense_of_has_a_caret_in_the_definition() {
        let definitions = [defined("p vfs_read a=%di file->f_x")];
        let message = "`file->f_x`, column 7: struct file has no member f_x";
        let error = invalid("probes[0].arguments[1]", message);
        let text = with_text(error, &definitions).to_string();
        let expected = "\
error: struct file has no member f_x
  |
1 | p vfs_read a=%di file->f_x
  |                        ^";
        assert_eq!(text, expected);
        let other = invalid("probes[0].place", "something else");
        assert_eq!(with_text(other, &definitions).to_string(), "something else");
    }

    #[test]
    fn a_filter_from_elsewhere_is_shown_alone() {
        let mut definitions = [defined("p vfs_read")];
        definitions[0].spec.filter = "nobody == 1".into();
        let message = "`nobody == 1`, column 1: no such argument";
        let text = with_text(invalid("probes[0].filter", message), &definitions).to_string();
        assert!(text.ends_with("1 | nobody == 1\n  | ^"), "{text}");
    }
}
