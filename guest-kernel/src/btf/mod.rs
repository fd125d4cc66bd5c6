//! The guest kernel's types, from the BTF that its image carries (`CONFIG_DEBUG_INFO_BTF`).
//!
//! Sizes, members, constants and prototypes, and types and values as C text. Read here rather than
//! by a crate: the existing ones copy all of it into maps, which takes ten times the memory,
//! or need files and another licence. A record is decoded when it is needed.

use std::sync::Arc;

use crate::image::Image;
use crate::symbols::{Symbols, hash};

mod c_type;
mod c_value;
mod declaration;
mod error;
mod find_member;
mod function;
mod member;
mod raw;
#[cfg(any(test, feature = "testing"))]
pub mod synthetic;
#[cfg(test)]
mod tests;
mod types;

pub use error::{BtfError, TypeError};
pub use function::{Parameter, Prototype};
pub use member::{Array, BitField, Member};
use raw::{Kind, RawTypes, TypeRecord};
pub use types::{Field, Integer, Shape, TypeId};

/// All types of a kernel, or of one of its modules and the kernel. Takes about as much memory as the section, and a
/// third more.
#[derive(Debug)]
pub struct Btf {
    raw: Arc<RawTypes>,
    /// Hash of each type's name and its number, sorted.
    by_name: Vec<(u32, u32)>,
    /// The kernel's types, if these are a module's.
    base: Option<Arc<Btf>>,
}

impl Btf {
    /// Reads the types of a vmlinux; `None` where it was built without. Takes some milliseconds.
    ///
    /// # Errors
    /// See [`BtfError`].
    pub fn from_image(image: &Image<'_>, symbols: &Symbols) -> Result<Option<Self>, BtfError> {
        // include/asm-generic/vmlinux.lds.h, BTF
        let [start, end] = ["__start_BTF", "__stop_BTF"]
            .map(|name| symbols.by_name(name).next().map(|symbol| symbol.address.0));
        let (Some(start), Some(end)) = (start, end) else {
            return Ok(None);
        };
        if start == end {
            return Ok(None);
        }
        let data = image.bytes(&(start..end)).ok_or(BtfError::Truncated)?;
        Self::parse(data).map(Some)
    }

    /// Reads the bytes of a BTF section.
    ///
    /// # Errors
    /// See [`BtfError`].
    pub fn parse(data: &[u8]) -> Result<Self, BtfError> {
        Self::layer(data, None)
    }

    /// Reads the bytes of a module's section, which refers to the kernel's types.
    ///
    /// # Errors
    /// See [`BtfError`].
    pub fn parse_module(data: &[u8], kernel: &Arc<Self>) -> Result<Self, BtfError> {
        Self::layer(data, Some(Arc::clone(kernel)))
    }

    fn layer(data: &[u8], base: Option<Arc<Self>>) -> Result<Self, BtfError> {
        let raw = RawTypes::parse(data, base.as_ref().map(|base| Arc::clone(&base.raw)))?;
        let mut by_name: Vec<_> = raw
            .iter()
            .filter(|(_, record)| !record.name.is_empty())
            .map(|(id, record)| (hash(record.name), id))
            .collect();
        by_name.sort_unstable();
        by_name.shrink_to_fit();
        Ok(Self {
            raw: Arc::new(raw),
            by_name,
            base,
        })
    }

    /// Returns true if these are a module's types, together with the kernel's.
    pub fn is_module_s(&self) -> bool {
        self.base.is_some()
    }

    /// Returns the size of a struct, union, enum, typedef or basic type in bytes, by its name alone: `"alt_instr"`, not
    /// `"struct alt_instr"`.
    ///
    /// # Errors
    /// There is no such type.
    pub fn size_of(&self, name: &str) -> Result<u64, TypeError> {
        let mut named = self.named(name).filter(|(_, record)| {
            !matches!(
                record.kind,
                Kind::Function | Kind::Prototype | Kind::Forward | Kind::Other
            )
        });
        let (id, _) = named.next().ok_or_else(|| TypeError::Unknown {
            name: name.to_owned(),
        })?;
        self.size(id).ok_or_else(|| TypeError::Damaged {
            name: name.to_owned(),
        })
    }

    /// Returns the value of a constant of an enum: `btf.constant("mod_mem_type", "MOD_TEXT")`.
    ///
    /// # Errors
    /// There is no such enum or constant.
    pub fn constant(&self, of: &str, name: &str) -> Result<i64, TypeError> {
        let (_, record) = self
            .named(of)
            .find(|(_, record)| matches!(record.kind, Kind::Enum | Kind::Enum64))
            .ok_or_else(|| TypeError::Unknown {
                name: of.to_owned(),
            })?;
        let found = record
            .constants()
            .find(|(at, _)| self.raw.name(*at) == name);
        let value = found.map(|(_, value)| value.cast_signed());
        value.ok_or_else(|| TypeError::NoConstant {
            of: of.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Returns all types of a name, a module's own before the kernel's.
    fn named(&self, name: &str) -> impl Iterator<Item = (u32, TypeRecord<'_>)> {
        let base = self.base.as_deref();
        let base = base.into_iter().flat_map(move |base| base.own_named(name));
        self.own_named(name).chain(base)
    }

    /// Returns all types of a name that aren't the base's.
    fn own_named(&self, name: &str) -> impl Iterator<Item = (u32, TypeRecord<'_>)> {
        let wanted = hash(name);
        let start = self.by_name.partition_point(|(hash, _)| *hash < wanted);
        self.by_name[start..]
            .iter()
            .take_while(move |(hash, _)| *hash == wanted)
            .filter_map(|(_, id)| Some((*id, self.raw.get(*id)?)))
            .filter(move |(_, record)| record.name == name)
    }

    /// Returns the size of a type in bytes.
    fn size(&self, id: u32) -> Option<u64> {
        /// More dimensions than any array has.
        const MAX_DIMENSIONS: usize = 16;
        let (mut id, mut count) = (id, 1_u64);
        for _ in 0..MAX_DIMENSIONS {
            let record = self.raw.resolve(id)?;
            let size = match record.kind {
                Kind::Pointer => 8,
                Kind::Array => {
                    let [element, _, len] = record.entries().next()?;
                    id = element;
                    count = count.checked_mul(u64::from(len))?;
                    continue;
                }
                Kind::Int
                | Kind::Float
                | Kind::Struct
                | Kind::Union
                | Kind::Enum
                | Kind::Enum64 => u64::from(record.size_or_type),
                _ => return None,
            };
            return count.checked_mul(size);
        }
        None
    }
}
