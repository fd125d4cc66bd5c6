//! Walking from type to type.

use super::Btf;
use super::raw::{Kind, TypeRecord};

/// How deep unnamed structs and unions may be in one another.
pub(super) const MAX_DEPTH: usize = 16;
/// How many members one search may look at: damaged types must not make it endless.
pub(super) const MAX_LOOKED_AT: usize = 1 << 16;

/// The number of a type in one kernel's types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub(super) u32);

impl TypeId {
    /// `void`.
    pub const VOID: Self = Self(0);
}

/// What a type is, behind its other names and its qualifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `void`.
    Void,
    /// A whole number.
    Integer(Integer),
    /// A floating-point number, and its size in bytes.
    Float(u32),
    /// A pointer to a type.
    Pointer(TypeId),
    /// Several of one type.
    Array {
        /// The type.
        element: TypeId,
        /// How many; 0 where that isn't known.
        count: u32,
    },
    /// A struct or union, and its size in bytes.
    Composite(u32),
    /// An enum.
    Enumeration {
        /// How many bytes.
        size: u32,
        /// Whether its constants may be negative.
        signed: bool,
    },
    /// A struct, union or enum of which only the name is known.
    Incomplete,
    /// Code.
    Function,
}

/// A whole number's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integer {
    /// How many bytes.
    pub size: u32,
    /// Whether it has a sign.
    pub signed: bool,
    /// `_Bool`.
    pub boolean: bool,
    /// `char` itself, which is for text, and not `signed char` or `unsigned char`.
    pub character: bool,
}

/// A member of a struct or union.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name; empty for an unnamed struct or union.
    pub name: &'a str,
    /// Its type.
    pub type_id: TypeId,
    /// Where it begins, in bits from the start of the type.
    pub bit_offset: u64,
    /// For bit fields: how many bits. 0 for other members.
    pub bits: u8,
}

impl Btf {
    /// Returns what a type is. `None` for a number that isn't there, and for damaged types.
    pub fn shape(&self, id: TypeId) -> Option<Shape> {
        let Some(record) = self.behind(id)? else {
            return Some(Shape::Void);
        };
        Some(match record.kind {
            Kind::Int => Shape::Integer(integer(&record)?),
            Kind::Float => Shape::Float(record.size_or_type),
            Kind::Pointer => Shape::Pointer(TypeId(record.size_or_type)),
            Kind::Array => {
                let [element, _, count] = record.entries().next()?;
                let element = TypeId(element);
                Shape::Array { element, count }
            }
            Kind::Struct | Kind::Union => Shape::Composite(record.size_or_type),
            Kind::Enum | Kind::Enum64 => Shape::Enumeration {
                size: record.size_or_type,
                signed: record.flag,
            },
            Kind::Forward => Shape::Incomplete,
            Kind::Function | Kind::Prototype => Shape::Function,
            _ => return None,
        })
    }

    /// Returns how many bytes a type takes. `None` for a type without a size.
    pub fn type_size(&self, id: TypeId) -> Option<u64> {
        self.size(id.0)
    }

    /// Returns true for numbers of 8 bits, which text is made of.
    pub fn is_byte(&self, id: TypeId) -> bool {
        matches!(
            self.shape(id),
            Some(Shape::Integer(Integer {
                size: 1,
                boolean: false,
                ..
            }))
        )
    }

    /// Returns the struct, union, enum, typedef or basic type of a name, which may have its keyword before it: `file`,
    /// `struct file`, `size_t`.
    pub fn type_named(&self, name: &str) -> Option<TypeId> {
        let words: Vec<_> = name.split_whitespace().collect();
        let keyword = words.first().and_then(|word| keyword(word));
        let name = words.get(usize::from(keyword.is_some())..)?.join(" ");
        self.named(&name)
            .find(|(_, record)| match keyword {
                Some(kinds) => kinds.contains(&record.kind),
                None => !matches!(
                    record.kind,
                    Kind::Function | Kind::Prototype | Kind::Forward | Kind::Other
                ),
            })
            .map(|(id, _)| TypeId(id))
    }

    /// Returns the members that a struct or union has itself, in order; none for other types.
    pub fn fields(&self, of: TypeId) -> impl Iterator<Item = Field<'_>> {
        let record = self.behind(of).flatten().filter(is_composite);
        record.into_iter().flat_map(move |record| {
            let entries = record.entries();
            entries.map(move |entry| self.field_of(&record, entry))
        })
    }

    /// Returns the names of all members of a struct or union, including those of unnamed structs and unions there.
    pub fn field_names(&self, of: TypeId) -> Vec<&str> {
        let mut names = Vec::new();
        let mut todo = vec![of];
        let mut budget = MAX_LOOKED_AT;
        while let Some(id) = todo.pop() {
            for field in self.fields(id) {
                if budget == 0 {
                    return names;
                }
                budget -= 1;
                if field.name.is_empty() {
                    todo.push(field.type_id);
                } else {
                    names.push(field.name);
                }
            }
        }
        names
    }

    /// Returns the name of an enum's constant by its value, of which only the bits of the enum's size count.
    pub fn enumerator(&self, of: TypeId, value: u64) -> Option<&str> {
        let record = self.behind(of).flatten()?;
        let unused = 64_u32.checked_sub(record.size_or_type.checked_mul(8)?)?;
        let mut constants = record.constants();
        let (name, _) =
            constants.find(|(_, constant)| unused < 64 && (*constant ^ value) << unused == 0)?;
        Some(self.raw.name(name))
    }

    /// Returns the record behind names and qualifiers; `Some(None)` is `void`.
    pub(super) fn behind(&self, id: TypeId) -> Option<Option<TypeRecord<'_>>> {
        let mut id = id.0;
        for _ in 0..super::raw::MAX_CHAIN {
            if id == 0 {
                return Some(None);
            }
            let record = self.raw.get(id)?;
            if !record.kind.is_alias() {
                return Some(Some(record));
            }
            id = record.size_or_type;
        }
        None
    }

    pub(super) fn field_of<'a>(
        &'a self,
        record: &TypeRecord<'a>,
        [name, id, offset]: [u32; 3],
    ) -> Field<'a> {
        let (bit_offset, bits) = member_bits(record, offset);
        Field {
            name: self.raw.name(name),
            type_id: TypeId(id),
            bit_offset,
            bits,
        }
    }
}

/// Returns where a member begins, in bits, and how many bits a bit field has (`BTF_MEMBER_BIT_OFFSET` and
/// `BTF_MEMBER_BITFIELD_SIZE`).
pub(super) fn member_bits(record: &TypeRecord<'_>, offset: u32) -> (u64, u8) {
    if record.flag {
        ((offset & 0x00ff_ffff).into(), (offset >> 24) as u8)
    } else {
        (offset.into(), 0)
    }
}

pub(super) fn is_composite(record: &TypeRecord<'_>) -> bool {
    matches!(record.kind, Kind::Struct | Kind::Union)
}

fn keyword(word: &str) -> Option<&'static [Kind]> {
    Some(match word {
        "struct" => &[Kind::Struct],
        "union" => &[Kind::Union],
        "enum" => &[Kind::Enum, Kind::Enum64],
        _ => return None,
    })
}

/// Decodes an integer's encoding (include/uapi/linux/btf.h, `BTF_INT_ENCODING`).
fn integer(record: &TypeRecord<'_>) -> Option<Integer> {
    const SIGNED: u32 = 1 << 24;
    const BOOL: u32 = 4 << 24;
    let [data] = record.entries().next()?;
    Some(Integer {
        size: record.size_or_type,
        signed: data & SIGNED != 0,
        boolean: data & BOOL != 0,
        character: record.name == "char",
    })
}
