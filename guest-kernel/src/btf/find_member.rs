//! Finding members of structs and unions, by paths.

use super::Btf;
use super::error::TypeError;
use super::member::{Array, BitField, Member};
use super::raw::{Kind, TypeRecord};
use super::types::{Field, MAX_DEPTH, MAX_LOOKED_AT, TypeId, is_composite, member_bits};

/// A member as its struct has it.
struct FoundMember<'a> {
    /// Where its name is.
    name: u32,
    /// In bits from the start of the struct that was searched.
    offset: u64,
    bits: u8,
    id: u32,
    /// What its type is, behind names and qualifiers.
    record: TypeRecord<'a>,
}

impl Btf {
    /// Returns the member of this name of a struct or union, also if it is in an unnamed struct or union there.
    pub fn field(&self, of: TypeId, name: &str) -> Option<Field<'_>> {
        let record = self.behind(of).flatten()?;
        let mut budget = MAX_LOOKED_AT;
        let found = search(self, &record, name, MAX_DEPTH, &mut budget)?;
        Some(Field {
            name: self.raw.name(found.name),
            type_id: TypeId(found.id),
            bit_offset: found.offset,
            bits: found.bits,
        })
    }

    /// Returns where a member of a struct or union is. The path may lead through embedded structs and unions, each step
    /// after a dot, and finds members of unnamed ones by their own names: `btf.member("module", "core_layout.base")`.
    /// It doesn't follow pointers or arrays.
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
            // A type's size has 32 bits, so only a path as long as memory can make the sum overflow.
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

/// Looks for a member by its name, in unnamed structs and unions as well.
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
        let (offset, bits) = member_bits(inside, offset);
        let own = btf.raw.name(at);
        let record = btf.raw.resolve(id);
        if own == name && !name.is_empty() {
            return Some(FoundMember {
                name: at,
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
