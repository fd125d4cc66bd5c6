//! Finding members of structs and unions, by paths.

use super::Btf;
use super::error::TypeError;
use super::member::{Array, BitField, Member};
use super::raw::{Kind, TypeRecord};

/// How deep unnamed structs and unions may be in one another.
const MAX_DEPTH: usize = 16;
/// How many members one step of a path may look at: damaged types must not make it endless.
const MAX_LOOKED_AT: usize = 1 << 16;

/// A member as its struct has it.
struct FoundMember<'a> {
    /// In bits from the start of the struct that was searched.
    offset: u64,
    bits: u8,
    id: u32,
    record: TypeRecord<'a>,
}

impl Btf {
    /// Where a member of a struct or union is. The path may lead through embedded structs and
    /// unions, each step after a dot, and finds members of unnamed ones by their own names:
    /// `btf.member("module", "core_layout.base")`. It doesn't follow pointers or arrays.
    ///
    /// # Errors
    /// There is no such type or member.
    pub fn member(&self, of: &str, path: &str) -> Result<Member, TypeError> {
        let mut inside = self
            .named(of)
            .filter_map(|(id, _)| self.raw.resolve(id))
            .find(is_composite)
            .ok_or_else(|| TypeError::Unknown {
                name: of.to_owned(),
            })?;
        let mut offset = 0_u64;
        let mut steps = path.split('.').peekable();
        let mut done = String::new();
        while let Some(step) = steps.next() {
            done.push_str(step);
            let no_member = || TypeError::NoMember {
                of: of.to_owned(),
                path: done.clone(),
            };
            let mut budget = MAX_LOOKED_AT;
            let found =
                search(self, &inside, step, MAX_DEPTH, &mut budget).ok_or_else(no_member)?;
            // A type's size is a number of 32 bits, so this takes a path as long as memory.
            offset = offset.saturating_add(found.offset);
            if steps.peek().is_none() {
                return describe(self, offset, &found).ok_or_else(|| TypeError::Damaged {
                    name: of.to_owned(),
                });
            }
            inside = found.record;
            done.push('.');
        }
        Err(TypeError::NoMember {
            of: of.to_owned(),
            path: path.to_owned(),
        })
    }
}

fn is_composite(record: &TypeRecord<'_>) -> bool {
    matches!(record.kind, Kind::Struct | Kind::Union)
}

fn search<'a>(
    btf: &'a Btf,
    inside: &TypeRecord<'a>,
    name: &str,
    depth: usize,
    budget: &mut usize,
) -> Option<FoundMember<'a>> {
    if !is_composite(inside) || depth == 0 {
        return None;
    }
    for [at, id, offset] in inside.entries() {
        *budget = budget.checked_sub(1)?;
        // `BTF_MEMBER_BIT_OFFSET` and `BTF_MEMBER_BITFIELD_SIZE`
        let (offset, bits) = if inside.flag {
            (offset & 0x00ff_ffff, (offset >> 24) as u8)
        } else {
            (offset, 0)
        };
        let (offset, own) = (u64::from(offset), btf.raw.name(at));
        let record = btf.raw.resolve(id);
        if own == name && !name.is_empty() {
            return Some(FoundMember {
                offset,
                bits,
                id,
                record: record?,
            });
        }
        if own.is_empty()
            && let Some(record) = record
            && let Some(found) = search(btf, &record, name, depth - 1, budget)
        {
            let offset = offset + found.offset;
            return Some(FoundMember { offset, ..found });
        }
    }
    None
}

fn describe(btf: &Btf, offset: u64, found: &FoundMember<'_>) -> Option<Member> {
    let array = if found.record.kind == Kind::Array {
        let [element, _, count] = found.record.entries().next()?;
        Some(Array {
            count: u64::from(count),
            element_size: btf.size(element)?,
        })
    } else {
        None
    };
    let bits = (found.bits != 0).then_some(BitField {
        shift: (offset % 8) as u8,
        len: found.bits,
    });
    Some(Member {
        offset: offset / 8,
        size: btf.size(found.id)?,
        array,
        bits,
    })
}
