//! Tiny kernels: assembled code in an ELF file with the form of a vmlinux.
//!
//! They are entered by the 64-bit boot protocol: long mode, the first 4 GiB mapped to themselves.
//! As Linux does, they then map themselves into the upper half and go on there. They use their data
//! by its physical address.

pub mod bzimage;

use iced_x86::code_asm::{CodeAssembler, CodeLabel, al, cr3, dx, ecx, ptr, rax, rbx, rcx, rsp};
use iced_x86::{BlockEncoderOptions, IcedError};

/// Where the code is, physically. The stack grows down from here.
pub const TEXT: u64 = 0x20_0000;
/// The distance from a physical address to its address in the upper half, where Linux' image is
/// linked, too.
pub const UPPER_HALF: u64 = 0xffff_ffff_8000_0000;
/// Zeroed memory for the guest's data, [`DATA_SIZE`] bytes.
pub const DATA: u64 = TEXT + 0x1_0000;
/// Size of the data in bytes.
pub const DATA_SIZE: u64 = 0x1_0000;
/// Sizes of an ELF64 file's header and of one program header.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// Where the code is in the file.
pub const CODE_AT: usize = HEADER + PROGRAM_HEADER;
/// First serial port: its data register; five further its line status (bit 0: input is there).
pub const COM1: u16 = 0x3f8;
/// ACPI's sleep control register as the monitor's tables name it, and S5 with its enable bit.
const SLEEP_PORT: u16 = 0x600;
const SLEEP_S5: u32 = 5 << 2 | 1 << 5;

/// Names for places in the code, which become the kernel's symbols.
#[derive(Debug, Default)]
pub struct Names(Vec<(String, CodeLabel)>);

impl Names {
    /// Gives the next instruction a name.
    ///
    /// # Errors
    /// If two names are given to one instruction.
    pub fn here(&mut self, a: &mut CodeAssembler, name: &str) -> Result<(), IcedError> {
        let mut label = a.create_label();
        a.set_label(&mut label)?;
        self.0.push((name.to_owned(), label));
        Ok(())
    }
}

/// Assembles a kernel. The code begins in the upper half with a stack in place.
/// Code of more than 64 KiB lies where the data would be.
///
/// # Errors
/// If it doesn't assemble.
pub fn build(
    code: impl FnOnce(&mut CodeAssembler, &mut Names) -> Result<(), IcedError>,
) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let mut names = Names::default();
    to_upper_half(&mut a)?;
    a.mov(rsp, TEXT)?;
    code(&mut a, &mut names)?;
    let start = UPPER_HALF + TEXT;
    let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let assembled = a.assemble_options(start, options)?;
    let text = &assembled.inner.code_buffer;
    let mut symbols = vec![("_stext", start), ("_etext", start + text.len() as u64)];
    for (name, label) in &names.0 {
        symbols.push((name, assembled.label_ip(label)?));
    }
    Ok(elf(text, &symbols))
}

/// Maps the first GiB at [`UPPER_HALF`], too, by the page tables that the monitor made, and goes on
/// there (SDM vol. 3, 4.5: the last entry of the PML4, entry 510 of the table it leads to).
fn to_upper_half(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut there = a.create_label();
    a.mov(rax, cr3)?;
    a.mov(rbx, ptr(rax))?;
    a.mov(ptr(rax + 511 * 8), rbx)?;
    a.and(rbx, -0x1000)?;
    a.mov(rcx, ptr(rbx))?;
    a.mov(ptr(rbx + 510 * 8), rcx)?;
    // Relative to RIP, so still in the lower half.
    a.lea(rax, ptr(there))?;
    a.mov(rbx, UPPER_HALF)?;
    a.add(rax, rbx)?;
    a.jmp(rax)?;
    a.set_label(&mut there)
}

/// Ends the guest by switching it off.
///
/// # Errors
/// None that this code can cause.
pub fn power_off(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(dx, u32::from(SLEEP_PORT))?;
    a.mov(al, SLEEP_S5)?;
    a.out(dx, al)?;
    // Never reached: if a monitor goes on, the failure shows.
    a.ud2()
}

/// Sends the 8 bytes of `rax` to the serial port, the lowest first. Changes `rax`, `rcx`, `rdx`.
///
/// # Errors
/// None that this code can cause.
pub fn send_rax(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut again = a.create_label();
    a.mov(dx, u32::from(COM1))?;
    a.mov(ecx, 8)?;
    a.set_label(&mut again)?;
    a.out(dx, al)?;
    a.shr(rax, 8)?;
    a.dec(ecx)?;
    a.jnz(again)
}

/// An ELF64 executable of one segment, with the code in `.text` and a symbol table.
fn elf(text: &[u8], symbols: &[(&str, u64)]) -> Vec<u8> {
    const SECTIONS: u16 = 5;
    let text_at = CODE_AT;
    let names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
    let mut strings = vec![0];
    // The first symbol of a table is empty.
    let mut table = vec![0; 24];
    for (name, address) in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        // STB_GLOBAL, STT_FUNC; default visibility; in section 1.
        table.extend([1 << 4 | 2, 0, 1, 0]);
        table.extend(address.to_le_bytes());
        table.extend(0_u64.to_le_bytes());
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    let table_at = (text_at + text.len()).next_multiple_of(8);
    let strings_at = table_at + table.len();
    let names_at = strings_at + strings.len();
    let sections_at = (names_at + names.len()).next_multiple_of(8);

    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    file.resize(16, 0);
    // ET_EXEC, EM_X86_64, version 1.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for value in [TEXT, HEADER as u64, sections_at as u64] {
        file.extend(value.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for value in [
        HEADER as u16,
        PROGRAM_HEADER as u16,
        1,
        64,
        SECTIONS,
        SECTIONS - 1,
    ] {
        file.extend(value.to_le_bytes());
    }
    // PT_LOAD, readable, writable, executable.
    file.extend([1, 0, 0, 0, 7, 0, 0, 0]);
    let in_memory = (DATA + DATA_SIZE - TEXT).max(text.len() as u64);
    let virt = UPPER_HALF + TEXT;
    for value in [
        text_at as u64,
        virt,
        TEXT,
        text.len() as u64,
        in_memory,
        0x1000,
    ] {
        file.extend(value.to_le_bytes());
    }
    for (at, bytes) in [
        (text_at, text),
        (table_at, &*table),
        (strings_at, &*strings),
        (names_at, &names[..]),
    ] {
        file.resize(at, 0);
        file.extend(bytes);
    }
    file.resize(sections_at, 0);
    // Name, type, flags, address, offset, size, link, info, alignment, entry size; the flags of
    // the code are SHF_ALLOC and SHF_EXECINSTR.
    let sections: [[u64; 10]; SECTIONS as usize] = [
        [0; 10],
        [
            1,
            1,
            6,
            virt,
            text_at as u64,
            text.len() as u64,
            0,
            0,
            16,
            0,
        ],
        [7, 2, 0, 0, table_at as u64, table.len() as u64, 3, 1, 8, 24],
        [
            15,
            3,
            0,
            0,
            strings_at as u64,
            strings.len() as u64,
            0,
            0,
            1,
            0,
        ],
        [23, 3, 0, 0, names_at as u64, names.len() as u64, 0, 0, 1, 0],
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
