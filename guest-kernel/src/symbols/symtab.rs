//! The ELF symbol table of a vmlinux that wasn't stripped.
//!
//! Source: System V ABI, "Symbol Table". The types are the letters of `nm`, as kallsyms has them.

use object::elf;
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym};
use object::{LittleEndian, SectionIndex};

use super::table::{SymbolEntry, SymbolTable};
use crate::image::Image;

type Header = elf::FileHeader64<LittleEndian>;

/// Reads `.symtab`. `None` where there is none, or it has no function or variable.
pub fn read(image: &Image<'_>) -> Option<SymbolTable> {
    let file = image.file;
    let sections = image.header.sections(LittleEndian, file).ok()?;
    let symbols = sections.symbols(LittleEndian, file, elf::SHT_SYMTAB).ok()?;
    let mut table = SymbolTable::with_capacity(symbols.len());
    for symbol in symbols.iter() {
        let Some(kind) = kind(symbol, &sections) else {
            continue;
        };
        let Ok(name) = symbol.name(LittleEndian, symbols.strings()) else {
            continue;
        };
        let (Ok(name), Ok(len)) = (str::from_utf8(name), u16::try_from(name.len())) else {
            continue;
        };
        // Kallsyms leaves the assembler's local labels out, too.
        if name.is_empty() || name.starts_with(".L") || name.starts_with('$') {
            continue;
        }
        let start = u32::try_from(table.text.len()).ok()?;
        table.text.push_str(name);
        table.entries.push(SymbolEntry {
            address: symbol.st_value(LittleEndian),
            name: start,
            len,
            kind,
        });
    }
    table.entries.sort_by_key(|entry| entry.address);
    (!table.entries.is_empty()).then_some(table)
}

fn kind(symbol: &elf::Sym64<LittleEndian>, sections: &SectionTable<'_, Header>) -> Option<u8> {
    let (kind, section) = (symbol.st_type(), symbol.st_shndx(LittleEndian));
    if kind == elf::STT_FILE || kind == elf::STT_SECTION || symbol.is_undefined(LittleEndian) {
        return None;
    }
    let letter = if section == elf::SHN_ABS {
        b'a'
    } else {
        let section = sections
            .section(SectionIndex(usize::from(section.0)))
            .ok()?;
        let flags = section.sh_flags(LittleEndian);
        if !flags.contains(elf::SHF_ALLOC) {
            return None;
        } else if symbol.st_bind() == elf::STB_WEAK {
            return Some(b'W');
        } else if flags.contains(elf::SHF_EXECINSTR) {
            b't'
        } else if section.sh_type(LittleEndian) == elf::SHT_NOBITS {
            b'b'
        } else if flags.contains(elf::SHF_WRITE) {
            b'd'
        } else {
            b'r'
        }
    };
    let global = symbol.st_bind() != elf::STB_LOCAL;
    Some(if global {
        letter.to_ascii_uppercase()
    } else {
        letter
    })
}
