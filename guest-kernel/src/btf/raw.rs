//! BTF as it is stored: a header, records of types numbered from 1, and their names.
//!
//! Source: Linux `Documentation/bpf/btf.rst` and `include/uapi/linux/btf.h`.

use std::sync::Arc;

use super::error::BtfError;

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
/// Magic, version, flags, length of the header, offset and length of the types and of the names.
const HEADER: usize = 24;
/// Longest chain of names and qualifiers. A longer one than any compiler makes is circular.
pub const MAX_CHAIN: usize = 64;
/// Name, info and size or type.
const RECORD: usize = 12;

/// The kind of a record (`BTF_KIND_*`), as far as this crate uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Int,
    Pointer,
    Array,
    Struct,
    Union,
    Enum,
    Enum64,
    Float,
    /// A structure, union (by `kind_flag`) or enum of which only the name is known.
    Forward,
    /// A function; its type is the prototype.
    Function,
    Prototype,
    /// Another name for a type.
    Typedef,
    Const,
    Volatile,
    Restrict,
    /// A type with a tag, such as `user`.
    TypeTag,
    /// Variables, sections and tags of declarations.
    Other,
}

impl Kind {
    /// Returns true for another name for a type, or a type with a qualifier or tag.
    pub fn is_alias(self) -> bool {
        matches!(
            self,
            Self::Typedef | Self::Const | Self::Volatile | Self::Restrict | Self::TypeTag
        )
    }
}

/// One type.
#[derive(Debug, Clone, Copy)]
pub struct TypeRecord<'a> {
    pub kind: Kind,
    pub name: &'a str,
    /// `kind_flag`: members of a struct have bit fields' sizes, values of an enum are signed.
    pub flag: bool,
    /// The size in bytes, or the number of another type.
    pub size_or_type: u32,
    /// What follows the record: members, parameters, constants.
    pub details: &'a [u8],
}

impl<'a> TypeRecord<'a> {
    /// Returns the details' entries of `N` words.
    pub fn entries<const N: usize>(&self) -> impl Iterator<Item = [u32; N]> + use<'a, N> {
        self.details.chunks_exact(N * 4).map(words)
    }

    /// Returns the constants of an enum: where each one's name is, and its value, extended by its sign.
    pub fn constants(&self) -> impl Iterator<Item = (u32, u64)> + use<'a> {
        let (wide, signed) = (self.kind == Kind::Enum64, self.flag);
        let size = match self.kind {
            Kind::Enum => 8,
            _ => 12,
        };
        let constants = matches!(self.kind, Kind::Enum | Kind::Enum64).then_some(self.details);
        let constants = constants.unwrap_or_default().chunks_exact(size);
        constants.map(words).map(move |[name, low, high]| {
            let value = match (wide, signed) {
                (true, _) => u64::from(low) | u64::from(high) << 32,
                (false, true) => i64::from(low.cast_signed()).cast_unsigned(),
                (false, false) => low.into(),
            };
            (name, value)
        })
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let (words, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|i| words.get(i).copied().map_or(0, u32::from_le_bytes))
}

/// The records and names of a BTF section, with where each record is.
///
/// A module's section ("split BTF") goes on where the kernel's ends: its types have the numbers behind the kernel's,
/// its names the offsets behind the kernel's, and it refers to the kernel's by theirs.
#[derive(Debug)]
pub struct RawTypes {
    /// The kernel's section, if this is a module's.
    base: Option<Arc<RawTypes>>,
    types: Vec<u8>,
    names: Vec<u8>,
    /// Where each record begins in `types`, from the type [`Self::first`] on.
    starts: Vec<u32>,
}

impl RawTypes {
    /// Reads the header and finds the records; their contents are read when they are needed. `base` is the kernel's
    /// section if this one is a module's.
    pub fn parse(data: &[u8], base: Option<Arc<Self>>) -> Result<Self, BtfError> {
        let header = data.get(..HEADER).ok_or(BtfError::Truncated)?;
        let [first, len, types_at, types_len, names_at, names_len] = words(header);
        if first as u16 != MAGIC || (first >> 16) as u8 != VERSION {
            return Err(BtfError::NotBtf);
        }
        let part = |at: u32, size: u32| {
            let start = (len as usize).checked_add(at as usize)?;
            Some(data.get(start..start.checked_add(size as usize)?)?.to_vec())
        };
        let types = part(types_at, types_len).ok_or(BtfError::Truncated)?;
        let names = part(names_at, names_len).ok_or(BtfError::Truncated)?;
        let mut starts = Vec::new();
        let mut at = 0;
        while at < types.len() {
            let bad = BtfError::BadType {
                id: starts.len() + 1,
            };
            let record = types.get(at..).and_then(|t| t.get(..RECORD));
            let Some(len) = record.and_then(|r| details_len(words::<3>(r)[1])) else {
                return Err(bad);
            };
            // The position is within a section whose length has 32 bits.
            starts.push(at as u32);
            at += RECORD + len;
            if at > types.len() {
                return Err(bad);
            }
        }
        Ok(Self {
            base,
            types,
            names,
            starts,
        })
    }

    /// Returns the section's own types with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, TypeRecord<'_>)> {
        (self.first()..)
            .zip(&self.starts)
            .filter_map(|(id, start)| Some((id, self.at(*start as usize)?)))
    }

    /// Returns a type by its number; `None` for `void` and numbers that aren't there.
    pub fn get(&self, id: u32) -> Option<TypeRecord<'_>> {
        match id.checked_sub(self.first()) {
            Some(own) => self.at(*self.starts.get(own as usize)? as usize),
            None => self.base.as_ref()?.get(id),
        }
    }

    /// Returns the number of the section's first type.
    fn first(&self) -> u32 {
        // `void` has no record. A section has less than 4 GiB.
        let base = self.base.as_ref();
        base.map_or(1, |base| base.first() + base.starts.len() as u32)
    }

    /// Returns the type behind aliases and qualifiers.
    pub fn resolve(&self, mut id: u32) -> Option<TypeRecord<'_>> {
        for _ in 0..MAX_CHAIN {
            let record = self.get(id)?;
            if !record.kind.is_alias() {
                return Some(record);
            }
            id = record.size_or_type;
        }
        None
    }

    fn at(&self, start: usize) -> Option<TypeRecord<'_>> {
        let (record, rest) = self.types.get(start..)?.split_at_checked(RECORD)?;
        let [name, info, size_or_type] = words(record);
        Some(TypeRecord {
            kind: kind(info),
            name: self.name(name),
            flag: info >> 31 != 0,
            size_or_type,
            details: rest.get(..details_len(info)?)?,
        })
    }

    /// Returns the name at an offset; empty if there is none.
    pub fn name(&self, at: u32) -> &str {
        let mut at = at as usize;
        if let Some(base) = &self.base {
            match at.checked_sub(base.names.len()) {
                Some(own) => at = own,
                None => return base.name(at as u32),
            }
        }
        let bytes = self.names.get(at..).unwrap_or_default();
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        str::from_utf8(&bytes[..len]).unwrap_or_default()
    }
}

fn kind(info: u32) -> Kind {
    match info >> 24 & 0x1f {
        1 => Kind::Int,
        2 => Kind::Pointer,
        3 => Kind::Array,
        4 => Kind::Struct,
        5 => Kind::Union,
        6 => Kind::Enum,
        7 => Kind::Forward,
        8 => Kind::Typedef,
        9 => Kind::Volatile,
        10 => Kind::Const,
        11 => Kind::Restrict,
        12 => Kind::Function,
        13 => Kind::Prototype,
        16 => Kind::Float,
        18 => Kind::TypeTag,
        19 => Kind::Enum64,
        _ => Kind::Other,
    }
}

/// Returns how many bytes follow a record; `None` for an unknown kind.
fn details_len(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    Some(match info >> 24 & 0x1f {
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => count * 12,
        // ENUM, FUNC_PROTO
        6 | 13 => count * 8,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}
