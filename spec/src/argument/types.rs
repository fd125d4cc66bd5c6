//! The type behind a value's `:` (`parse_probe_arg_type` in `kernel/trace/trace_probe.c`).

use super::error::{Reason, Wrong};
use super::{BaseType, Type};
use crate::limits::ARRAY_MAX;
use crate::piece::{Piece, number};

/// Types by their names.
pub const NAMES: [(&str, BaseType); 19] = [
    ("u8", BaseType::Unsigned(8)),
    ("u16", BaseType::Unsigned(16)),
    ("u32", BaseType::Unsigned(32)),
    ("u64", BaseType::Unsigned(64)),
    ("s8", BaseType::Signed(8)),
    ("s16", BaseType::Signed(16)),
    ("s32", BaseType::Signed(32)),
    ("s64", BaseType::Signed(64)),
    ("x8", BaseType::Hex(8)),
    ("x16", BaseType::Hex(16)),
    ("x32", BaseType::Hex(32)),
    ("x64", BaseType::Hex(64)),
    ("char", BaseType::Char),
    ("string", BaseType::String),
    ("ustring", BaseType::UserString),
    ("symbol", BaseType::Symbol),
    ("symstr", BaseType::SymbolString),
    ("%pd", BaseType::NameOfDentry),
    ("%pD", BaseType::NameOfFile),
];

/// Reads a type: a name or a bit-field, and `[COUNT]`.
pub fn read(text: Piece<'_>) -> Result<Type, Wrong> {
    let (name, count) = match text.split('[') {
        Some((name, rest)) => (name, Some(count(rest)?)),
        None => (text, None),
    };
    let base = base(name.text).map_err(|reason| reason.at(name.span()))?;
    // The kernel knows these two at the end of an argument only (`traceprobe_expand_dentry_args`).
    if count.is_some() && matches!(base, BaseType::NameOfDentry | BaseType::NameOfFile) {
        return Err(Reason::BadType.at(name.span()));
    }
    Ok(Type {
        base,
        count,
        span: text.span(),
    })
}

/// Reads `COUNT]`.
fn count(text: Piece<'_>) -> Result<u32, Wrong> {
    let Some((digits, behind)) = text.split(']') else {
        return Err(Reason::OpenArray.at(text.end()..text.end()));
    };
    if !behind.text.is_empty() {
        return Err(Reason::BehindArray.at(behind.span()));
    }
    match number(digits.text).map(u32::try_from) {
        None | Some(Err(_) | Ok(0)) => Err(Reason::BadCount.at(digits.span())),
        Some(Ok(count @ 1..=ARRAY_MAX)) => Ok(count),
        Some(Ok(_)) => Err(Reason::CountTooBig.at(digits.span())),
    }
}

fn base(name: &str) -> Result<BaseType, Reason> {
    if let Some(field) = name.strip_prefix('b') {
        return bit_field(field);
    }
    NAMES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, base)| *base)
        .ok_or(Reason::BadType)
}

/// Reads `WIDTH@OFFSET/CONTAINER`.
fn bit_field(text: &str) -> Result<BaseType, Reason> {
    let (bits, container) = text.split_once('/').ok_or(Reason::BadType)?;
    let container: u8 = match number(container) {
        Some(8) => 8,
        Some(16) => 16,
        Some(32) => 32,
        Some(64) => 64,
        _ => return Err(Reason::BadType),
    };
    let read = |digits| number(digits).and_then(|bits| u8::try_from(bits).ok());
    let (width, offset) = bits.split_once('@').ok_or(Reason::BadBitField)?;
    match (read(width), read(offset)) {
        (Some(width @ 1..), Some(offset))
            if u16::from(width) + u16::from(offset) <= container.into() =>
        {
            Ok(BaseType::BitField {
                width,
                offset,
                container,
            })
        }
        _ => Err(Reason::BadBitField),
    }
}
