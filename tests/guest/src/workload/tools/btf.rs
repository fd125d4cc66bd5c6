//! The kernel's own type information (Documentation/bpf/btf.rst).

use std::fs;
use std::io;

const PATH: &str = "/sys/kernel/btf/vmlinux";

/// Kinds of types that are searched for, and those with more data behind them than their size says.
mod kind {
    pub const INT: u32 = 1;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const DECL_TAG: u32 = 17;
    pub const ENUM64: u32 = 19;
}

/// A type: its number, the place of its name, its kind, how many parts follow, and where they
/// begin.
struct Type {
    id: u32,
    name: u32,
    kind: u32,
    bit_fields: bool,
    size: u32,
    parts: usize,
    at: usize,
}

/// The types of the kernel.
pub struct Types {
    bytes: Vec<u8>,
    types: usize,
    strings: usize,
}

fn damaged() -> io::Error {
    io::Error::other(format!("{PATH} isn't understood"))
}

impl Types {
    /// Reads the running kernel's.
    pub fn of_kernel() -> io::Result<Self> {
        Self::new(fs::read(PATH)?).ok_or_else(damaged)
    }

    fn new(bytes: Vec<u8>) -> Option<Self> {
        const MAGIC: u32 = 0xeb9f;
        let header = word(&bytes, 4)? as usize;
        let types = header + word(&bytes, 8)? as usize;
        let strings = header + word(&bytes, 16)? as usize;
        (word(&bytes, 0)? & 0xffff == MAGIC).then_some(Self {
            bytes,
            types,
            strings,
        })
    }

    fn each(&self) -> impl Iterator<Item = Type> {
        let (mut at, mut id) = (self.types, 0);
        std::iter::from_fn(move || {
            if at >= self.strings {
                return None;
            }
            let info = word(&self.bytes, at + 4)?;
            id += 1;
            let found = Type {
                id,
                name: word(&self.bytes, at)?,
                kind: info >> 24 & 0x1f,
                bit_fields: info >> 31 != 0,
                size: word(&self.bytes, at + 8)?,
                parts: (info & 0xffff) as usize,
                at: at + 12,
            };
            at = found.at
                + match found.kind {
                    kind::INT | kind::VAR | kind::DECL_TAG => 4,
                    kind::ARRAY => 12,
                    kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * found.parts,
                    kind::ENUM | kind::FUNC_PROTO => 8 * found.parts,
                    _ => 0,
                };
            Some(found)
        })
    }

    fn is_named(&self, name: u32, expected: &str) -> bool {
        let at = self.strings + name as usize;
        let end = at + expected.len();
        self.bytes.get(at..end) == Some(expected.as_bytes()) && self.bytes.get(end) == Some(&0)
    }

    fn find(&self, kind: u32, name: &str) -> io::Result<Type> {
        let found = self
            .each()
            .find(|it| it.kind == kind && self.is_named(it.name, name));
        found.ok_or_else(|| {
            io::Error::other(format!("the kernel has no type information of {name}"))
        })
    }

    /// The number of a function.
    pub fn function(&self, name: &str) -> io::Result<u32> {
        Ok(self.find(kind::FUNC, name)?.id)
    }

    /// The size of a struct in bytes.
    pub fn size(&self, name: &str) -> io::Result<usize> {
        Ok(self.find(kind::STRUCT, name)?.size as usize)
    }

    /// Returns the offset of a struct's member, in bytes.
    pub fn member(&self, name: &str, member: &str) -> io::Result<u32> {
        let found = self.find(kind::STRUCT, name)?;
        for part in 0..found.parts {
            let at = found.at + 12 * part;
            let part_name = word(&self.bytes, at).ok_or_else(damaged)?;
            if self.is_named(part_name, member) {
                let bits = word(&self.bytes, at + 8).ok_or_else(damaged)?;
                return Ok(if found.bit_fields {
                    bits & 0xff_ffff
                } else {
                    bits
                } / 8);
            }
        }
        Err(io::Error::other(format!("struct {name} has no {member}")))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_members_are_found_behind_other_types() {
        let strings = b"\0int\0f\0s\0a\0b\0";
        let (int, f, s, a, b) = (1_u32, 5_u32, 7_u32, 9_u32, 11_u32);
        let types: Vec<u32> = [
            vec![int, kind::INT << 24, 4, 0],
            vec![0, kind::FUNC_PROTO << 24 | 1, 1, a, 1],
            vec![s, kind::STRUCT << 24 | 2, 8, a, 1, 0, b, 1, 32],
            vec![f, kind::FUNC << 24, 2],
        ]
        .concat();
        let length = types.len() as u32 * 4;
        let header = [0xeb9f, 24, 0, length, length, strings.len() as u32];
        let words = header.iter().chain(&types);
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(strings);
        let types = Types::new(bytes).unwrap();
        assert_eq!(types.function("f").unwrap(), 4);
        assert_eq!(types.member("s", "b").unwrap(), 4);
        assert_eq!(types.size("s").unwrap(), 8);
        assert!(types.member("s", "c").is_err() && types.function("s").is_err());
    }
}
