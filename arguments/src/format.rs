//! How the values that a hit has taken are shown.

use guest_kernel::btf::{BitField, Btf, TypeId};
use guest_kernel::symbols::Symbols;
use guest_state::GuestVirtAddr;
use probe_engine::value::Taken;
use vmprobe_proto::v1;
use vmprobe_proto::v1::value::Value as Kind;

/// Longest text of a structure, in bytes.
const TEXT_MAX: usize = 4096;

/// How the values of an argument are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    what: What,
    /// The number of elements of an array.
    count: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Number(Number),
    Text,
    /// A text that is constant.
    Constant(String),
    /// A value as C writes it, at this many bytes in what is taken.
    Whole(TypeId, usize),
}

/// A number in the bytes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number {
    /// How many bytes it has.
    pub size: u8,
    /// Which bits of these it is, if it isn't all.
    pub bits: Option<BitField>,
    pub style: Style,
}

/// How a number is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Unsigned,
    Signed,
    Hex,
    Char,
    /// The constant of an enum.
    Enumerator(TypeId),
    /// An address, as symbol and offset.
    Symbol,
    /// The same, as a string.
    SymbolString,
}

impl Format {
    pub(crate) fn number(number: Number, count: Option<u32>) -> Self {
        let what = What::Number(number);
        Self { what, count }
    }

    pub(crate) fn text(count: Option<u32>) -> Self {
        let what = What::Text;
        Self { what, count }
    }

    pub(crate) fn constant(text: String) -> Self {
        let what = What::Constant(text);
        Self { what, count: None }
    }

    pub(crate) fn whole(id: TypeId) -> Self {
        Self::part(id, 0)
    }

    /// What begins at `from` bytes in all that is taken.
    pub(crate) fn part(id: TypeId, from: usize) -> Self {
        let what = What::Whole(id, from);
        Self { what, count: None }
    }

    /// How numbers and texts are written.
    pub fn kind(&self) -> v1::ArgumentFormat {
        match &self.what {
            What::Number(number) => match number.style {
                Style::Unsigned => v1::ArgumentFormat::Unsigned,
                Style::Signed => v1::ArgumentFormat::Signed,
                Style::Hex => v1::ArgumentFormat::Hex,
                Style::Char => v1::ArgumentFormat::Char,
                Style::Enumerator(_) | Style::Symbol => v1::ArgumentFormat::Text,
                Style::SymbolString => v1::ArgumentFormat::String,
            },
            What::Text | What::Constant(_) => v1::ArgumentFormat::String,
            What::Whole(..) => v1::ArgumentFormat::Text,
        }
    }

    /// How many bytes a number has, or each number of an array; 0 for text. A bit field has as many as its container.
    pub fn size(&self) -> u32 {
        match (&self.what, self.kind()) {
            (
                What::Number(number),
                v1::ArgumentFormat::Unsigned
                | v1::ArgumentFormat::Signed
                | v1::ArgumentFormat::Hex
                | v1::ArgumentFormat::Char,
            ) => u32::from(number.size).next_power_of_two().min(8),
            _ => 0,
        }
    }

    /// The bits of a single number in the first 8 bytes of its value: the first of them, how many they are, and whether
    /// the uppermost is a sign. `None` for all else.
    pub fn bits(&self) -> Option<(u8, u8, bool)> {
        let (What::Number(number), None) = (&self.what, self.count) else {
            return None;
        };
        let signed = number.style == Style::Signed;
        match number.bits {
            Some(bits) => Some((bits.shift, bits.len, signed)),
            None => Some((0, number.size.checked_mul(8)?.min(64), signed)),
        }
    }

    /// Returns true if it is one text that is taken from memory.
    pub fn is_single_text(&self) -> bool {
        (&self.what, self.count) == (&What::Text, None)
    }

    /// How many elements an array has; 0 for a single value.
    pub fn elements(&self) -> u32 {
        self.count.unwrap_or(0)
    }

    /// Returns the value of an argument in the protocol, of what a hit has taken for its `values`. The types must be
    /// those of the kernel that it was compiled for. Without them, structures are their bytes in hex, and constants of
    /// enums are numbers. A value without contents means that there are fewer bytes than the argument needs.
    pub fn show(&self, types: Option<&Btf>, symbols: &Symbols, taken: &[Taken]) -> v1::Value {
        let shower = Shower { types, symbols };
        let value = match (&self.what, self.count) {
            (What::Constant(text), _) => Some(Kind::Text(text.clone().into_bytes())),
            (What::Text, Some(count)) => {
                let texts = taken.iter().take(count as usize).map(text);
                Some(list(texts.map(Some)))
            }
            (What::Number(number), Some(count)) => match taken.first() {
                Some(Taken::Bytes(bytes)) => {
                    let size = usize::from(number.size.max(1));
                    let elements = bytes.chunks_exact(size).take(count as usize);
                    Some(list(elements.map(|bytes| shower.number(number, bytes))))
                }
                other => other.map(text),
            },
            (What::Text, None) => taken.first().map(text),
            (What::Whole(id, from), _) => shower.whole(*id, *from, taken),
            (_, None) => match taken.first() {
                Some(Taken::Bytes(bytes)) => shower.single(&self.what, bytes),
                other => other.map(text),
            },
        };
        v1::Value { value }
    }
}

fn list(elements: impl Iterator<Item = Option<Kind>>) -> Kind {
    let values = elements.map(|value| v1::Value { value }).collect();
    Kind::List(v1::ValueList { values })
}

fn text(taken: &Taken) -> Kind {
    match taken {
        Taken::Bytes(bytes) => Kind::Text(bytes.clone()),
        Taken::Fault => Kind::Fault(v1::FaultyPointer {}),
    }
}

/// What values are shown with.
struct Shower<'a> {
    types: Option<&'a Btf>,
    symbols: &'a Symbols,
}

impl Shower<'_> {
    fn single(&self, what: &What, bytes: &[u8]) -> Option<Kind> {
        match what {
            What::Number(number) => self.number(number, bytes),
            What::Text | What::Constant(_) | What::Whole(..) => Some(Kind::Text(bytes.to_vec())),
        }
    }

    /// Shows what begins at `from` bytes in the values that were taken for it.
    fn whole(&self, id: TypeId, from: usize, taken: &[Taken]) -> Option<Kind> {
        let mut bytes = Vec::new();
        for value in taken {
            match value {
                Taken::Bytes(more) => bytes.extend(more),
                Taken::Fault => return Some(text(value)),
            }
        }
        let bytes = bytes.get(from..).filter(|_| !taken.is_empty())?;
        let text = match self.types {
            Some(types) => types.value_text(id, bytes, TEXT_MAX),
            None => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        Some(Kind::Text(text.into_bytes()))
    }

    fn number(&self, number: &Number, bytes: &[u8]) -> Option<Kind> {
        let (shift, len) = match number.bits {
            Some(bits) => (bits.shift.into(), bits.len.into()),
            None => (0, u32::from(number.size) * 8),
        };
        let value = Btf::bits(bytes, shift, len)?;
        let unused = 64_u32.checked_sub(len).filter(|unused| *unused < 64)?;
        let signed = (value << unused).cast_signed() >> unused;
        Some(match number.style {
            Style::Unsigned | Style::Hex | Style::Char => Kind::Unsigned(value),
            Style::Signed => Kind::Signed(signed),
            Style::Enumerator(id) => {
                let text = self.types.map(|types| types.enum_text(id, value, len));
                Kind::Text(text.unwrap_or_else(|| value.to_string()).into_bytes())
            }
            Style::Symbol | Style::SymbolString => Kind::Text(self.symbol(value).into_bytes()),
        })
    }

    /// As the kernel's `%pS` writes it (kernel/kallsyms.c, `__sprint_symbol`).
    fn symbol(&self, address: u64) -> String {
        match self.symbols.resolve_as_printed(GuestVirtAddr(address)) {
            Some(found) => {
                let name = found.symbol.name;
                format!("{name}+{:#x}/{:#x}", found.offset, found.size)
            }
            None => format!("{address:#x}"),
        }
    }
}
