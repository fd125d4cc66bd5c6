//! A kernel of three functions and some data, as an unstripped ELF file. It never runs.

use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The address where it is loaded.
const TEXT: u64 = 0x20_0000;
/// The address where it is linked, as Linux is.
const LINKED: u64 = 0xffff_ffff_8000_0000 + TEXT;
/// `push %rbp; mov %rsp,%rbp; pop %rbp; ret` and padding.
const FUNCTION: [u8; 16] = [
    0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
];
const FUNCTIONS: [&str; 3] = ["first", "second", "third"];
/// A symbol of 64 bytes of data.
pub const DATA: &str = "data";
const DATA_LEN: usize = 64;

/// Sizes of an ELF64 file's header, of a program header and of a symbol.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SYMBOL: u64 = 24;

/// The kernel's file, removed when dropped.
pub struct Kernel(PathBuf);

impl Kernel {
    pub fn write() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vmprobe-held-{}-{number}", process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, elf()).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _gone_or_left_behind = std::fs::remove_file(&self.0);
    }
}

/// Returns names, and offsets from the start.
fn symbols() -> Vec<(&'static str, u64)> {
    let end = (FUNCTIONS.len() * FUNCTION.len()) as u64;
    let functions = FUNCTIONS.into_iter();
    let offsets = (0..end).step_by(FUNCTION.len());
    let mut symbols = vec![("_stext", 0), ("_etext", end), (DATA, end + 16)];
    symbols.extend(functions.zip(offsets));
    symbols
}

fn elf() -> Vec<u8> {
    let mut text = FUNCTION.repeat(FUNCTIONS.len());
    text.resize(text.len() + 16 + DATA_LEN, 0);
    let names = b"\0.text\0.symtab\0.strtab\0";
    let mut strings = names.to_vec();
    let mut table = vec![0; SYMBOL as usize];
    for (name, offset) in symbols() {
        table.extend((strings.len() as u32).to_le_bytes());
        // STB_GLOBAL, STT_NOTYPE; default visibility; in section 1.
        table.extend([1 << 4, 0, 1, 0]);
        table.extend((LINKED + offset).to_le_bytes());
        table.extend(0_u64.to_le_bytes());
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    let text_at = HEADER + PROGRAM_HEADER;
    let table_at = (text_at + text.len()).next_multiple_of(8);
    let strings_at = table_at + table.len();
    let sections_at = (strings_at + strings.len()).next_multiple_of(8);

    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    file.resize(16, 0);
    // ET_EXEC, EM_X86_64, version 1.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for value in [TEXT, HEADER as u64, sections_at as u64] {
        file.extend(value.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for value in [HEADER as u16, PROGRAM_HEADER as u16, 1, 64, 4, 3] {
        file.extend(value.to_le_bytes());
    }
    // PT_LOAD, readable, writable, executable.
    file.extend([1, 0, 0, 0, 7, 0, 0, 0]);
    let len = text.len() as u64;
    for value in [text_at as u64, LINKED, TEXT, len, len, 0x1000] {
        file.extend(value.to_le_bytes());
    }
    for (at, bytes) in [(text_at, &text), (table_at, &table), (strings_at, &strings)] {
        file.resize(at, 0);
        file.extend(bytes);
    }
    file.resize(sections_at, 0);
    let (table_len, strings_len) = (table.len() as u64, strings.len() as u64);
    // Name, type, flags, address, offset, size, link, info, alignment, entry size; the flags of the
    // code are SHF_ALLOC and SHF_EXECINSTR.
    let sections: [[u64; 10]; 4] = [
        [0; 10],
        [1, 1, 6, LINKED, text_at as u64, len, 0, 0, 16, 0],
        [7, 2, 0, 0, table_at as u64, table_len, 3, 1, 8, SYMBOL],
        [15, 3, 0, 0, strings_at as u64, strings_len, 0, 0, 1, 0],
    ];
    for section in sections {
        for (index, value) in section.into_iter().enumerate() {
            // Name, type, link and info have four bytes, the others eight.
            let short = [0, 1, 6, 7].contains(&index);
            file.extend(&value.to_le_bytes()[..if short { 4 } else { 8 }]);
        }
    }
    file
}
