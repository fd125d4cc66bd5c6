//! Values of a type that the argument gives.

use guest_kernel::btf::{BitField, Shape};
use probe_engine::value::{Base, Load, Space, Value};
use vmprobe_spec::argument::{BaseType, Type};

use super::chain::{Chain, Typed};
use super::compiler::{Compiler, STRING_MAX, number};
use crate::error::Cause;
use crate::format::{Format, Number, Style};

/// Most elements of an array (`kernel/trace/trace_probe.h`, `MAX_ARRAY_LEN`).
const ARRAY_MAX: u32 = 64;

/// What leads from a file and a dentry to the name (`traceprobe_expand_dentry_args` in `kernel/trace/trace_probe.c`).
const DENTRY_OF_FILE: (&str, &str) = ("file", "f_path.dentry");
const NAME_OF_DENTRY: (&str, &str) = ("dentry", "d_name.name");

impl Compiler<'_> {
    pub(super) fn given(&self, chain: Chain, kind: &Type) -> Result<(Vec<Value>, Format), Cause> {
        if let Some(count) = kind.count.filter(|count| !(1..=ARRAY_MAX).contains(count)) {
            return Err(Cause::ArrayLength { count });
        }
        let mut number = match kind.base {
            BaseType::String => return self.string(chain, false, kind.count),
            BaseType::UserString => return self.string(chain, true, kind.count),
            BaseType::SymbolString => return symbol_string(chain, kind.count),
            BaseType::NameOfDentry => return self.name_of(chain, &[NAME_OF_DENTRY]),
            BaseType::NameOfFile => return self.name_of(chain, &[DENTRY_OF_FILE, NAME_OF_DENTRY]),
            BaseType::Unsigned(bits) => plain(bits, Style::Unsigned)?,
            BaseType::Signed(bits) => plain(bits, Style::Signed)?,
            BaseType::Hex(bits) => plain(bits, Style::Hex)?,
            BaseType::Char => plain(8, Style::Char)?,
            BaseType::Symbol => plain(64, Style::Symbol)?,
            BaseType::BitField {
                width,
                offset,
                container,
            } => bit_field(width, offset, container)?,
        };
        // A member of a structure in registers.
        let shift = chain.typed.map_or(0, |typed| typed.shift);
        if chain.at.is_none() && shift > 0 {
            number.bits = Some(within(number, shift)?);
            number.size = 8;
        }
        let size = u16::from(number.size);
        let len = match kind.count {
            None => size,
            Some(_) if chain.at.is_none() => return Err(Cause::ArrayNeedsMemory),
            // At most 64 elements of 8 bytes.
            Some(count) => size * count as u16,
        };
        let format = Format::number(number, kind.count);
        Ok((vec![chain.take(len)], format))
    }

    fn string(
        &self,
        chain: Chain,
        user: bool,
        count: Option<u32>,
    ) -> Result<(Vec<Value>, Format), Cause> {
        let Some(count) = count else {
            let (chain, most) = self.text_at(chain, user)?;
            let value = chain.take_text(user, most);
            return Ok((vec![value], Format::text(None)));
        };
        // Documentation/trace/kprobetrace.rst, "Types": an array of strings is one of pointers. Whose memory has the
        // pointers says nothing of the texts (trace_probe.c, finalize_fetch_insn).
        if chain.at.is_none() {
            return Err(Cause::ArrayNeedsMemory);
        }
        let mut values = Vec::new();
        for element in 0..count {
            let space = if user { Space::User } else { Space::Any };
            let pointer = chain.clone().forward(u64::from(element) * 8)?;
            let text = pointer.dereference(0, space)?;
            values.push(text.take_text(user, STRING_MAX));
        }
        Ok((values, Format::text(Some(count))))
    }

    /// Takes the name of a file: `members` lead to it, each from what the one before points to.
    fn name_of(
        &self,
        mut chain: Chain,
        members: &[(&str, &str)],
    ) -> Result<(Vec<Value>, Format), Cause> {
        let types = self.known.types.ok_or(Cause::NoNameOfDentry)?;
        for (of, path) in members {
            let member = types.member(of, path);
            let member = member.map_err(|_| Cause::NoNameOfDentry)?;
            chain = chain.dereference(0, Space::Any)?.forward(member.offset)?;
        }
        let text = chain.dereference(0, Space::Any)?;
        Ok((vec![text.take_text(false, STRING_MAX)], Format::text(None)))
    }

    /// Finds where the text is that a value is or leads to, and how long it is at most.
    fn text_at(&self, chain: Chain, user: bool) -> Result<(Chain, u16), Cause> {
        if let Some(typed) = chain.typed {
            return self.typed_text(chain, typed, user);
        }
        // trace_probe.c, finalize_fetch_insn: a word of the stack is no string. A register that is one, or a constant,
        // is the text that it leads to.
        let is_word = chain.at.is_none();
        if is_word && (chain.is_stack_entry || chain.base == Base::Flags) {
            return Err(Cause::NoString);
        }
        Ok((chain, STRING_MAX))
    }

    /// `trace_probe.c`, `check_prepare_btf_string_fetch`: an array of characters is text, a pointer to them
    /// leads to text.
    fn typed_text(&self, chain: Chain, typed: Typed, user: bool) -> Result<(Chain, u16), Cause> {
        let not_text = || Cause::NotText {
            type_text: self.type_text(typed.id),
        };
        let types = self.known.types.ok_or(Cause::Damaged)?;
        match self.shape(typed.id)? {
            Shape::Array { element, count } if types.is_byte(element) => {
                let most = u16::try_from(count).unwrap_or(STRING_MAX).min(STRING_MAX);
                let most = if most == 0 { STRING_MAX } else { most };
                Ok((chain, most))
            }
            Shape::Pointer(to) if types.is_byte(to) || self.shape(to)? == Shape::Void => {
                let space = if user { Space::User } else { Space::Any };
                Ok((chain.dereference(0, space)?, STRING_MAX))
            }
            _ => Err(not_text()),
        }
    }
}

/// `trace_probe.c`, `finalize_fetch_insn`, `BAD_SYMSTRING`
fn symbol_string(chain: Chain, count: Option<u32>) -> Result<(Vec<Value>, Format), Cause> {
    if count.is_some() {
        return Err(Cause::NoSuchArray);
    }
    let is_user = matches!(
        chain.at,
        Some(Load {
            space: Space::User,
            ..
        })
    );
    let is_constant = chain.at.is_none() && matches!(chain.base, Base::Constant(_));
    if is_user || is_constant {
        return Err(Cause::NoSymbolString);
    }
    Ok(number(chain, Style::SymbolString, 8))
}

/// Returns the bits of a number that begins `shift` bits into a word.
fn within(number: Number, shift: u8) -> Result<BitField, Cause> {
    let bits = number.bits.unwrap_or(BitField {
        shift: 0,
        len: number.size.saturating_mul(8),
    });
    let (width, offset) = (bits.len, shift.saturating_add(bits.shift));
    if u16::from(width) + u16::from(offset) > 64 {
        return Err(Cause::BitField {
            width,
            offset,
            container: 64,
        });
    }
    Ok(BitField {
        shift: offset,
        len: width,
    })
}

/// Makes a number of `bits` bits.
fn plain(bits: u8, style: Style) -> Result<Number, Cause> {
    if !matches!(bits, 8 | 16 | 32 | 64) {
        return Err(Cause::NumberSize { bits });
    }
    Ok(Number {
        size: bits / 8,
        bits: None,
        style,
    })
}

/// `trace_probe.c`, `__parse_bitfield_probe_arg`: bits are a number without a sign.
fn bit_field(width: u8, offset: u8, container: u8) -> Result<Number, Cause> {
    let end = u16::from(width) + u16::from(offset);
    let fits = matches!(container, 8 | 16 | 32 | 64);
    if width == 0 || !fits || end > container.into() {
        return Err(Cause::BitField {
            width,
            offset,
            container,
        });
    }
    Ok(Number {
        size: container / 8,
        bits: Some(BitField {
            shift: offset,
            len: width,
        }),
        style: Style::Unsigned,
    })
}
