//! A relocatable ELF file of a few sections (System V ABI, and its supplement for AMD64).

/// A reference to a symbol in a section's bytes.
pub struct Relocation {
    pub at: usize,
    pub kind: u32,
    pub symbol: usize,
    pub addend: i64,
}

/// The symbol's address in 64 bits; in 32 sign-extended bits; relative to the reference.
pub const ABSOLUTE: u32 = 1;
pub const SIGNED: u32 = 11;
pub const BRANCH: u32 = 4;

/// Flags of sections.
pub const WRITE: u64 = 1;
pub const ALLOC: u64 = 2;
pub const EXECUTE: u64 = 4;

/// A section with contents.
pub struct Section {
    pub name: &'static str,
    pub flags: u64,
    pub bytes: Vec<u8>,
    pub relocations: Vec<Relocation>,
}

/// A symbol: its section and its place there; no section for an external symbol.
pub struct Symbol {
    pub name: String,
    pub section: Option<usize>,
    pub at: usize,
}

const HEADER: usize = 64;
const ALIGN: usize = 16;
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const RELA: u32 = 4;

/// Strings, one after the other.
struct Strings(Vec<u8>);

impl Strings {
    fn new() -> Self {
        Self(vec![0])
    }

    fn add(&mut self, text: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend(text.as_bytes());
        self.0.push(0);
        at
    }
}

/// A line of the table of sections, without the place of its bytes.
struct Line {
    name: u32,
    kind: u32,
    flags: u64,
    link: u32,
    info: u32,
    entry: u64,
    bytes: Vec<u8>,
}

/// Makes the file. Symbol `n` of the list has the number `n`; all are global.
pub fn relocatable(sections: Vec<Section>, symbols: &[Symbol]) -> Vec<u8> {
    let (mut names, mut strings) = (Strings::new(), Strings::new());
    let count = sections.len() as u32;
    // The first section is empty; then come those given, the symbols, two tables of strings, and relocations.
    let (symtab, strtab, shstrtab) = (count + 1, count + 2, count + 3);
    let mut table = vec![0; 24];
    for symbol in symbols {
        const GLOBAL_NOTYPE: u8 = 0x10;
        table.extend(strings.add(&symbol.name).to_le_bytes());
        table.extend([GLOBAL_NOTYPE, 0]);
        let section = symbol.section.map_or(0, |index| index as u16 + 1);
        table.extend(section.to_le_bytes());
        table.extend((symbol.at as u64).to_le_bytes());
        table.extend(0_u64.to_le_bytes());
    }
    let mut lines = Vec::new();
    let mut relocations = Vec::new();
    for (index, section) in sections.into_iter().enumerate() {
        if !section.relocations.is_empty() {
            let mut bytes = Vec::new();
            for it in &section.relocations {
                bytes.extend((it.at as u64).to_le_bytes());
                bytes.extend((u64::from(it.kind) | (it.symbol as u64 + 1) << 32).to_le_bytes());
                bytes.extend(it.addend.to_le_bytes());
            }
            relocations.push(Line {
                name: names.add(&format!(".rela{}", section.name)),
                kind: RELA,
                flags: 0,
                link: symtab,
                info: index as u32 + 1,
                entry: 24,
                bytes,
            });
        }
        lines.push(Line {
            name: names.add(section.name),
            kind: PROGBITS,
            flags: section.flags,
            link: 0,
            info: 0,
            entry: 0,
            bytes: section.bytes,
        });
    }
    let plain = |name, kind, link, info, entry, bytes| Line {
        name,
        kind,
        flags: 0,
        link,
        info,
        entry,
        bytes,
    };
    // The first symbol, which is empty, is the only one that isn't global.
    lines.push(plain(names.add(".symtab"), SYMTAB, strtab, 1, 24, table));
    lines.push(plain(names.add(".strtab"), STRTAB, 0, 0, 0, strings.0));
    let own = names.add(".shstrtab");
    lines.push(plain(own, STRTAB, 0, 0, 0, names.0));
    lines.extend(relocations);
    file(&lines, shstrtab)
}

fn file(lines: &[Line], shstrtab: u32) -> Vec<u8> {
    let mut body = Vec::new();
    let mut table = vec![0; 64];
    for line in lines {
        let at = HEADER + body.len();
        for word in [line.name, line.kind] {
            table.extend(word.to_le_bytes());
        }
        let size = line.bytes.len() as u64;
        for word in [line.flags, 0, at as u64, size] {
            table.extend(word.to_le_bytes());
        }
        for word in [line.link, line.info] {
            table.extend(word.to_le_bytes());
        }
        for word in [ALIGN as u64, line.entry] {
            table.extend(word.to_le_bytes());
        }
        body.extend(&line.bytes);
        body.resize(body.len().next_multiple_of(ALIGN), 0);
    }
    // 64 bits, least significant byte first, version 1; relocatable, for AMD64.
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([1, 0, 62, 0, 1, 0, 0, 0]);
    for word in [0, 0, (HEADER + body.len()) as u64] {
        file.extend(word.to_le_bytes());
    }
    file.extend([0; 4]);
    let sections = lines.len() as u16 + 1;
    for half in [HEADER as u16, 0, 0, 64, sections, shstrtab as u16] {
        file.extend(half.to_le_bytes());
    }
    file.extend(body);
    file.extend(table);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(file: &[u8], at: usize, length: usize) -> usize {
        let bytes = file[at..at + length].iter().rev();
        bytes.fold(0, |n, byte| n << 8 | usize::from(*byte))
    }

    #[test]
    fn sections_name_each_other_by_their_numbers() {
        let relocation = Relocation {
            at: 2,
            kind: BRANCH,
            symbol: 0,
            addend: -4,
        };
        let text = Section {
            name: ".text",
            flags: ALLOC | EXECUTE,
            bytes: vec![0xc3; 6],
            relocations: vec![relocation],
        };
        let symbol = Symbol {
            name: "f".into(),
            section: None,
            at: 0,
        };
        let file = relocatable(vec![text], &[symbol]);
        let table = number(&file, 40, 8);
        let line = |index: usize| table + 64 * index;
        let bytes = |index| {
            let at = number(&file, line(index) + 24, 8);
            &file[at..at + number(&file, line(index) + 32, 8)]
        };
        let names = bytes(number(&file, 62, 2));
        let name = |index| {
            let rest = &names[number(&file, line(index), 4)..];
            let end = rest.iter().position(|byte| *byte == 0).unwrap();
            std::str::from_utf8(&rest[..end]).unwrap()
        };
        let all: Vec<&str> = (0..number(&file, 60, 2)).map(name).collect();
        let expected = ["", ".text", ".symtab", ".strtab", ".shstrtab", ".rela.text"];
        assert_eq!(all, expected);
        assert_eq!((bytes(1), bytes(3)), (&[0xc3; 6][..], &b"\0f\0"[..]));
        // The relocations are of section 1 and name symbols of section 2, whose names are in section 3.
        let links = |index| {
            (
                number(&file, line(index) + 40, 4),
                number(&file, line(index) + 44, 4),
            )
        };
        assert_eq!((links(5), links(2)), ((2, 1), (3, 1)));
        assert_eq!(number(bytes(5), 8, 8), 1 << 32 | BRANCH as usize);
    }
}
