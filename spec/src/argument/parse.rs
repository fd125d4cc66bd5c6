//! An argument's name, value and type, put together
//! (`traceprobe_parse_probe_arg` in `kernel/trace/trace_probe.c`).

use super::error::{Reason, Wrong};
use super::{Argument, BaseType, Fetch, Type, Value, types, value};
use crate::limits::{ARGUMENT_MAX, ARGUMENT_NAME_MAX, NESTING_MAX};
use crate::piece::{Piece, is_identifier};

/// Reads one argument, such as `path=+0($arg2):ustring`. [`Argument::check`] says whether it can be had at a probe's
/// place.
///
/// `$argN:string` and `$retval:string` are pointers to text, so they are read as `+0($argN):string`.
///
/// ```
/// let argument = vmprobe_spec::argument::parse("path=$arg2:ustring")?;
/// assert_eq!(argument.to_string(), "path=+0($arg2):ustring");
/// # Ok::<(), vmprobe_spec::argument::Wrong>(())
/// ```
///
/// # Errors
/// [`Wrong`], with the place that the kernel would tell.
pub fn parse(text: &str) -> Result<Argument, Wrong> {
    if let Some(at) = text.find(char::is_whitespace) {
        return Err(Reason::Space.at(at..at + 1));
    }
    let whole = Piece::whole(text);
    let (name, body) = name(whole)?;
    if body.text.len() > ARGUMENT_MAX {
        return Err(Reason::TooLong.at(body.span()));
    }
    if body.text.is_empty() {
        return Err(Reason::NoValue.at(body.span()));
    }
    let (value_text, type_text) = split_type(body);
    if value_text.text == "$arg*" && (name.is_some() || type_text.is_some()) {
        return Err(Reason::NotAlone.at(value_text.span()));
    }
    let kind = type_text.map(types::read).transpose()?;
    let value = value::read(value_text)?;
    let value = match &kind {
        Some(kind) => typed(value, kind)?,
        None => value,
    };
    if accesses(&value, kind.as_ref()) > NESTING_MAX {
        return Err(Reason::TooDeep.at(value.span));
    }
    Ok(Argument {
        name: name.map(|name| name.text.to_owned()),
        value,
        kind,
        span: whole.span(),
    })
}

/// Splits off `NAME=`, if it is there. A `=` within a text doesn't end a name.
fn name(whole: Piece<'_>) -> Result<(Option<Piece<'_>>, Piece<'_>), Wrong> {
    let split = whole.split('=').filter(|_| !whole.text.starts_with('\\'));
    let Some((name, body)) = split else {
        return Ok((None, whole));
    };
    let reason = match name.text {
        "" => Reason::NoName,
        text if text.len() > ARGUMENT_NAME_MAX => Reason::NameTooLong,
        text if !is_identifier(text) => Reason::BadName,
        _ => return Ok((Some(name), body)),
    };
    Err(reason.at(name.span()))
}

/// Splits a value from the type behind its `:`. A `:` within a text doesn't begin a type.
fn split_type(body: Piece<'_>) -> (Piece<'_>, Option<Piece<'_>>) {
    let text = body.behind("\\\"");
    let quoted = text.and_then(|text| Some(2 + text.text.rfind('"')? + 1));
    let (quoted, rest) = body.split_at(quoted.unwrap_or(0));
    match rest.split(':') {
        Some((before, kind)) => {
            let (value, _) = body.split_at(quoted.text.len() + before.text.len());
            (value, Some(kind))
        }
        None => (body, None),
    }
}

/// Checks that a type fits a value (`finalize_fetch_insn`). Returns the value, as `+0(VALUE)` for a string that an
/// argument or a return value points to.
fn typed(mut value: Value, kind: &Type) -> Result<Value, Wrong> {
    let wrong = |reason: Reason| Err(reason.at(kind.span.clone()));
    if let Fetch::Comm | Fetch::Text(_) = value.what {
        let fits = kind.base == BaseType::String && kind.count.is_none();
        return if fits {
            Ok(value)
        } else {
            wrong(Reason::NeedsString)
        };
    }
    // The type in C tells whether it is text: an array or a pointer.
    let by_type = matches!(value.what, Fetch::Variable(_) | Fetch::Member { .. });
    let in_memory = matches!(
        value.what,
        Fetch::Address(_) | Fetch::Symbol { .. } | Fetch::Memory { .. } | Fetch::Member { .. }
    );
    match kind.base {
        BaseType::String | BaseType::UserString => {
            if let Fetch::Argument(_) | Fetch::ReturnValue = value.what {
                value = pointed_to(value);
            } else if !in_memory && !by_type && !matches!(value.what, Fetch::Number(_)) {
                return wrong(Reason::BadString);
            }
        }
        BaseType::SymbolString => {
            let constant = matches!(value.what, Fetch::Stack | Fetch::Number(_));
            let user = matches!(value.what, Fetch::Memory { user: true, .. });
            if constant || user || kind.count.is_some() {
                return wrong(Reason::BadSymbolString);
            }
        }
        _ if kind.count.is_some() && !in_memory => return wrong(Reason::BadArray),
        _ => {}
    }
    Ok(value)
}

/// Makes `+0(VALUE)`.
fn pointed_to(address: Value) -> Value {
    Value {
        span: address.span.clone(),
        what: Fetch::Memory {
            offset: 0,
            user: false,
            address: Box::new(address),
        },
    }
}

/// Returns how many of the kernel's steps a value takes besides the first, with those that its type adds
/// (`FETCH_INSN_MAX`).
fn accesses(value: &Value, kind: Option<&Type>) -> usize {
    let steps = value::steps(value);
    let Some(kind) = kind else {
        return steps;
    };
    // What `traceprobe_expand_dentry_args` writes in the place of the two names.
    let of_type = match kind.base {
        BaseType::BitField { .. } => 1,
        BaseType::NameOfDentry => 2,
        BaseType::NameOfFile => 3,
        _ => 0,
    };
    steps + of_type + usize::from(kind.count.is_some())
}
