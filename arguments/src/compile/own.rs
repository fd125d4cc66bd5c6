//! Values of the type that they have in the kernel.

use guest_kernel::btf::{BitField, Integer, Shape};
use probe_engine::value::{VALUE_MAX, Value};

use super::chain::{Chain, Typed};
use super::compiler::{Compiler, STRING_MAX, number};
use crate::error::Cause;
use crate::format::{Format, Number, Style};

impl Compiler<'_> {
    /// Takes a value whose type is known, to be shown by it.
    pub(super) fn own(&self, chain: Chain) -> Result<(Vec<Value>, Format), Cause> {
        let typed = chain.typed.ok_or(Cause::Untyped)?;
        let unshowable = || Cause::Unshowable {
            type_text: self.type_text(typed.id),
        };
        let in_memory = chain.at.is_some();
        match self.shape(typed.id)? {
            Shape::Pointer(_) => Ok(number(chain, Style::Hex, 8)),
            Shape::Integer(integer) => match integer_size(integer) {
                Some(size) if integer.signed => scalar(chain, typed, Style::Signed, size),
                Some(size) => scalar(chain, typed, Style::Unsigned, size),
                None if in_memory => self.whole(chain, typed),
                None => Err(unshowable()),
            },
            Shape::Enumeration { size, .. } => {
                let size = u8::try_from(size).ok().filter(|size| *size <= 8);
                let size = size.ok_or(Cause::Damaged)?;
                scalar(chain, typed, Style::Enumerator(typed.id), size)
            }
            Shape::Array { element, count } if in_memory => {
                let element = self.shape(element)?;
                let of_text =
                    matches!(element, Shape::Integer(Integer { character, .. }) if character);
                match (of_text, count) {
                    (true, 0) => Ok(text(chain, STRING_MAX)),
                    (true, _) => Ok(text(chain, shortened(count.into()))),
                    (false, 0) => Err(unshowable()),
                    (false, _) => self.whole(chain, typed),
                }
            }
            Shape::Composite(_) | Shape::Float(_) if in_memory => self.whole(chain, typed),
            Shape::Composite(_) if !chain.words.is_empty() => Ok(of_words(&chain, typed)),
            _ => Err(unshowable()),
        }
    }

    /// Takes all bytes of a value in memory, to be shown as C writes it.
    fn whole(&self, chain: Chain, typed: Typed) -> Result<(Vec<Value>, Format), Cause> {
        let size = self.known.types.and_then(|types| types.type_size(typed.id));
        let size = size.ok_or(Cause::Damaged)?;
        let value = chain.take(shortened(size));
        Ok((vec![value], Format::whole(typed.id)))
    }
}

/// Takes a structure in registers, to be shown as C writes it.
fn of_words(chain: &Chain, typed: Typed) -> (Vec<Value>, Format) {
    let words = chain.words.iter();
    let values = words.map(|base| Chain::word(*base).take(8)).collect();
    // Structures in structures begin at whole bytes.
    (values, Format::part(typed.id, (chain.inside / 8) as usize))
}

/// Cuts a size to at most as many bytes as a value can have.
fn shortened(size: u64) -> u16 {
    u16::try_from(size).unwrap_or(VALUE_MAX).min(VALUE_MAX)
}

fn text(chain: Chain, most: u16) -> (Vec<Value>, Format) {
    (vec![chain.take_text(false, most)], Format::text(None))
}

fn integer_size(integer: Integer) -> Option<u8> {
    matches!(integer.size, 1 | 2 | 4 | 8).then_some(integer.size as u8)
}

/// Takes a number, or the bits of one.
fn scalar(
    chain: Chain,
    typed: Typed,
    style: Style,
    size: u8,
) -> Result<(Vec<Value>, Format), Cause> {
    if typed.bits == 0 {
        return Ok(number(chain, style, size));
    }
    if typed.bits > 64 {
        return Err(Cause::Damaged);
    }
    // At most 9: 7 bits before it, and 64.
    let size = (typed.shift + typed.bits).div_ceil(8);
    let number = Number {
        size,
        bits: Some(BitField {
            shift: typed.shift,
            len: typed.bits,
        }),
        style,
    };
    let value = chain.take(size.into());
    Ok((vec![value], Format::number(number, None)))
}
