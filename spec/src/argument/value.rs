//! Where a value comes from (`parse_probe_arg` in `kernel/trace/trace_probe.c`).

use super::error::{Reason, Wrong};
use super::{Fetch, Value, registers};
use crate::limits::{NESTING_MAX, STACK_WORDS_MAX};
use crate::piece::{Piece, is_identifier, number, signed};

/// Reads a value. It calls itself for each `(`, so the caller bounds the text's length.
pub fn read(text: Piece<'_>) -> Result<Value, Wrong> {
    let wrong = |reason: Reason| Err(reason.at(text.span()));
    let rest = text.skip(1);
    let what = match text.text.chars().next() {
        Some('$') => return variable(text, rest),
        Some('%') => match registers::fetch(rest.text) {
            Ok(register) => register,
            Err(reason) => return wrong(reason),
        },
        Some('@') => at(text, rest)?,
        Some('+') => return memory(text, rest, false),
        Some('-') => return memory(text, rest, true),
        Some('\\') => immediate(rest)?,
        Some(c) if c.is_ascii_alphabetic() || c == '_' => return parameter(text),
        Some(_) => return wrong(Reason::BadValue),
        None => return wrong(Reason::NoValue),
    };
    Ok(Value {
        what,
        span: text.span(),
    })
}

/// Reads `$NAME`.
fn variable(text: Piece<'_>, name: Piece<'_>) -> Result<Value, Wrong> {
    if let Some(members) = name.behind("retval") {
        let (of, rest) = text.split_at(members.at - text.at);
        return members_of(value(Fetch::ReturnValue, of), rest, Reason::BadVariable);
    }
    let decimal = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<u64>().ok(),
        false => None,
    };
    let wrong = |reason: Reason| Err(reason.at(text.span()));
    let what = match name.text {
        "stack" => Fetch::Stack,
        "comm" | "COMM" => Fetch::Comm,
        "arg*" => Fetch::AllArguments,
        other => {
            let stack = other.strip_prefix("stack").and_then(decimal);
            let argument = other.strip_prefix("arg").and_then(decimal);
            match (stack.map(u32::try_from), argument.map(u32::try_from)) {
                (Some(Ok(entry)), _) if entry <= STACK_WORDS_MAX => Fetch::StackEntry(entry),
                (Some(_), _) => return wrong(Reason::BadStackNumber),
                (_, Some(Ok(argument @ 1..=STACK_WORDS_MAX))) => Fetch::Argument(argument),
                (_, Some(_)) => return wrong(Reason::BadArgumentNumber),
                (None, None) => return wrong(Reason::BadVariable),
            }
        }
    };
    Ok(value(what, text))
}

/// Reads `@ADDRESS` or `@SYMBOL+OFFSET`.
fn at(text: Piece<'_>, rest: Piece<'_>) -> Result<Fetch, Wrong> {
    let first = rest.text.chars().next();
    if first == Some('+') {
        return Err(Reason::FileOffset.at(text.span()));
    }
    if first.is_some_and(|c| c.is_ascii_digit()) {
        let address = number(rest.text);
        return address
            .map(Fetch::Address)
            .ok_or_else(|| Reason::BadAddress.at(text.span()));
    }
    let (name, offset) = rest.take(|c| c.is_ascii_alphanumeric() || "_.$".contains(c));
    let offset = match offset.text.strip_prefix('+') {
        None if offset.text.is_empty() => Some(0),
        // `+-1` isn't an offset.
        Some(digits) => number(digits).and_then(|offset| i64::try_from(offset).ok()),
        None => offset
            .text
            .starts_with('-')
            .then(|| signed(offset.text))
            .flatten(),
    };
    match offset {
        Some(offset) if !name.text.is_empty() => Ok(Fetch::Symbol {
            name: name.text.to_owned(),
            offset,
        }),
        _ => Err(Reason::BadSymbol.at(text.span())),
    }
}

/// Reads `+OFFSET(ADDRESS)` and `+uOFFSET(ADDRESS)`, the last `)` being its own.
fn memory(text: Piece<'_>, rest: Piece<'_>, negative: bool) -> Result<Value, Wrong> {
    let (user, rest) = match rest.behind("u") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let Some((digits, inner)) = rest.split('(') else {
        return Err(Reason::NoParenthesis.at(text.span()));
    };
    let offset = number(digits.text).and_then(|offset| match negative {
        true => 0_i64.checked_sub_unsigned(offset),
        false => i64::try_from(offset).ok(),
    });
    let Some(offset) = offset else {
        let (sign_and_offset, _) = text.split_at(digits.end() - text.at);
        return Err(Reason::BadOffset.at(sign_and_offset.span()));
    };
    let Some(close) = inner.text.rfind(')') else {
        return Err(Reason::OpenParenthesis.at(inner.end()..inner.end()));
    };
    let (address_text, behind) = inner.split_at(close);
    let behind = behind.skip(1);
    if !behind.text.is_empty() {
        return Err(Reason::BehindParenthesis.at(behind.span()));
    }
    let address = read(address_text)?;
    match address.what {
        Fetch::Comm | Fetch::Text(_) => {
            return Err(Reason::TextAsAddress.at(address.span));
        }
        Fetch::AllArguments => return Err(Reason::NotAlone.at(address.span)),
        _ => {}
    }
    if steps(&address) + 1 > NESTING_MAX {
        return Err(Reason::TooDeep.at(address.span));
    }
    let what = Fetch::Memory {
        offset,
        user,
        address: Box::new(address),
    };
    Ok(value(what, text))
}

/// Reads what follows `\`.
fn immediate(rest: Piece<'_>) -> Result<Fetch, Wrong> {
    if let Some(text) = rest.behind("\"") {
        return match text.text.strip_suffix('"') {
            Some(text) => Ok(Fetch::Text(text.to_owned())),
            None => Err(Reason::OpenText.at(text.end()..text.end())),
        };
    }
    let found = match rest.text.strip_prefix('+') {
        Some(digits) => number(digits).and_then(|number| i64::try_from(number).ok()),
        None if rest.text.starts_with('-') => signed(rest.text),
        None => number(rest.text).map(u64::cast_signed),
    };
    found
        .map(Fetch::Number)
        .ok_or_else(|| Reason::BadImmediate.at(rest.span()))
}

/// Reads `PARAMETER`, `PARAMETER->MEMBER.MEMBER`, and `PARAMETER.MEMBER` of a structure in
/// registers.
fn parameter(text: Piece<'_>) -> Result<Value, Wrong> {
    let (name, rest) = text.take(|c| c.is_ascii_alphanumeric() || c == '_');
    let of = value(Fetch::Variable(name.text.to_owned()), name);
    members_of(of, rest, Reason::BadParameter)
}

/// Reads the members that follow a value. `otherwise` is the reason of the error if something else
/// follows.
fn members_of(of: Value, members: Piece<'_>, otherwise: Reason) -> Result<Value, Wrong> {
    let start = of.span.start;
    let mut found = of;
    let mut rest = members;
    let mut first = true;
    while let Some(separator) = rest.text.chars().next() {
        let (arrow, name) = match separator {
            '-' => match rest.behind("->") {
                Some(name) => (true, name),
                None => return Err(Reason::LoneHyphen.at(rest.at..rest.at + 1)),
            },
            '.' => (false, rest.skip(1)),
            _ if first => return Err(otherwise.at(start..rest.end())),
            _ => return Err(Reason::BadMember.at(rest.span())),
        };
        let (field, next) = name.take(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_identifier(field.text) {
            return Err(Reason::BadMember.at(name.span()));
        }
        found = Value {
            what: Fetch::Member {
                of: Box::new(found),
                arrow,
                field: field.text.to_owned(),
            },
            span: start..field.end(),
        };
        if steps(&found) > NESTING_MAX {
            return Err(Reason::TooDeep.at(field.span()));
        }
        rest = next;
        first = false;
    }
    Ok(found)
}

fn value(what: Fetch, text: Piece<'_>) -> Value {
    Value {
        what,
        span: text.span(),
    }
}

/// Returns how many of the kernel's steps a value takes besides its first.
pub fn steps(value: &Value) -> usize {
    let mut value = value;
    let mut steps = 0;
    loop {
        value = match &value.what {
            Fetch::Memory { address, .. } => {
                steps += 1;
                address
            }
            Fetch::Member { of, arrow, .. } => {
                steps += usize::from(*arrow);
                of
            }
            Fetch::Address(_) => return steps + 1,
            Fetch::Symbol { .. } => return steps + 2,
            _ => return steps,
        };
    }
}
