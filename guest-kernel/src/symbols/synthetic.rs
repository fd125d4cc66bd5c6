//! Small kernel images for tests, with kallsyms tables laid out as the kernel versions do it.

/// Where the synthetic kernel is linked.
pub const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Length of its code in bytes; the tables lie behind it.
pub const TEXT_LEN: u64 = 0x1000;
/// Where its segment is in the file.
pub const SEGMENT: usize = 0x1000;

/// A symbol to put in: address, type, name. They must be in the order of their addresses.
pub type Definition = (u64, char, String);

/// How kallsyms is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Before base-relative tables: addresses first, whole.
    Absolute,
    /// Linux 6.1: offsets first, per-CPU variables absolute.
    V6_1,
    /// Linux 6.2: the same, and sequence numbers before the dictionary.
    V6_2,
    /// Linux 6.4 to 6.14: offsets last, per-CPU variables absolute.
    V6_4,
    /// Linux 6.15: offsets last, all of them relative to the base.
    V6_15,
    /// Linux 7.2: offsets from themselves, no base, alignment 4.
    V7_2,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Absolute,
        Self::V6_1,
        Self::V6_2,
        Self::V6_4,
        Self::V6_15,
        Self::V7_2,
    ];

    /// Returns true if a symbol near address 0 can be stored.
    pub fn has_per_cpu(self) -> bool {
        matches!(self, Self::Absolute | Self::V6_1 | Self::V6_2 | Self::V6_4)
    }

    fn align(self) -> usize {
        if self == Self::V7_2 { 4 } else { 8 }
    }
}

/// Returns the text of a code in the dictionary: each character stands for itself, and some codes
/// for longer texts.
fn token(code: u8) -> &'static str {
    const LONGER: [&str; 6] = ["sys_", "__", "read", "Tdo_", "function_", "_with_"];
    const GRAPHIC: &str = "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`\
                           abcdefghijklmnopqrstuvwxyz{|}~";
    match code {
        b'!'..=b'~' => {
            let at = usize::from(code - b'!');
            &GRAPHIC[at..=at]
        }
        0x90.. => LONGER.get(usize::from(code) - 0x90).copied().unwrap_or(""),
        _ => "",
    }
}

/// Returns the codes for a text, longest first.
fn encode(mut text: &str) -> Vec<u8> {
    let mut codes = vec![];
    while !text.is_empty() {
        let code = (0..=255).rev().find(|code| {
            let token = token(*code);
            !token.is_empty() && text.starts_with(token)
        });
        let code = code.expect("names are ASCII");
        codes.push(code);
        text = &text[token(code).len()..];
    }
    codes
}

/// A growing segment.
struct Builder {
    data: Vec<u8>,
    align: usize,
}

impl Builder {
    fn table(&mut self, bytes: impl IntoIterator<Item = u8>) {
        self.data.extend(bytes);
        self.data
            .resize(self.data.len().next_multiple_of(self.align), 0);
    }

    fn addresses(&mut self, symbols: &[Definition], layout: Layout) {
        let at = TEXT + self.data.len() as u64;
        let offsets: Vec<u8> = symbols
            .iter()
            .zip(0..)
            .flat_map(|((address, ..), i)| {
                let offset = match layout {
                    Layout::Absolute => return address.to_le_bytes().to_vec(),
                    Layout::V6_15 => address.wrapping_sub(TEXT),
                    Layout::V7_2 => address.wrapping_sub(at + i * 4),
                    _ if *address < 1 << 31 => *address,
                    _ => (TEXT - 1).wrapping_sub(*address),
                };
                (offset as u32).to_le_bytes().to_vec()
            })
            .collect();
        self.table(offsets);
        if !matches!(layout, Layout::Absolute | Layout::V7_2) {
            self.table(TEXT.to_le_bytes());
        }
    }
}

/// Makes a vmlinux with these symbols in kallsyms.
pub fn vmlinux(symbols: &[Definition], layout: Layout) -> Vec<u8> {
    let mut b = Builder {
        data: vec![0x90; TEXT_LEN as usize],
        align: layout.align(),
    };
    // Numbers before the tables, such as other read-only data has.
    b.table((0..600_u32).flat_map(|i| (i * 7).to_le_bytes()));
    let addresses_first = matches!(layout, Layout::Absolute | Layout::V6_1 | Layout::V6_2);
    if addresses_first {
        b.addresses(symbols, layout);
    }
    b.table((symbols.len() as u32).to_le_bytes());
    let mut names = vec![];
    let mut markers = vec![];
    for (i, (_, kind, name)) in symbols.iter().enumerate() {
        if i % 256 == 0 {
            markers.push(names.len() as u32);
        }
        let codes = encode(&format!("{kind}{name}"));
        if codes.len() < 0x80 {
            names.push(codes.len() as u8);
        } else {
            names.extend([codes.len() as u8 | 0x80, (codes.len() >> 7) as u8]);
        }
        names.extend(codes);
    }
    b.table(names);
    b.table(markers.into_iter().flat_map(u32::to_le_bytes));
    let sequences = vec![0x33; symbols.len() * 3];
    if layout == Layout::V6_2 {
        b.table(sequences.clone());
    }
    let mut index = vec![];
    let mut texts: Vec<u8> = vec![];
    for code in 0..=255 {
        index.extend((texts.len() as u16).to_le_bytes());
        texts.extend(token(code).bytes().chain([0]));
    }
    b.table(texts);
    b.table(index);
    if !addresses_first {
        b.addresses(symbols, layout);
        b.table(sequences);
    }
    b.table([0xcc; 64]);
    elf(&b.data)
}

/// Makes an ELF file with `data` as its one segment.
pub fn elf(data: &[u8]) -> Vec<u8> {
    let mut file = vec![0; SEGMENT];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
    put(16, &2_u16.to_le_bytes()); // e_type: ET_EXEC
    put(18, &62_u16.to_le_bytes()); // e_machine: EM_X86_64
    put(20, &1_u32.to_le_bytes()); // e_version
    put(32, &64_u64.to_le_bytes()); // e_phoff
    put(52, &64_u16.to_le_bytes()); // e_ehsize
    put(54, &56_u16.to_le_bytes()); // e_phentsize
    put(56, &1_u16.to_le_bytes()); // e_phnum
    put(58, &64_u16.to_le_bytes()); // e_shentsize
    put(64, &1_u32.to_le_bytes()); // p_type: PT_LOAD
    put(68, &5_u32.to_le_bytes()); // p_flags: R, X
    put(72, &(SEGMENT as u64).to_le_bytes()); // p_offset
    put(80, &TEXT.to_le_bytes()); // p_vaddr
    put(96, &(data.len() as u64).to_le_bytes()); // p_filesz
    put(104, &(data.len() as u64).to_le_bytes()); // p_memsz
    file.extend_from_slice(data);
    file
}

/// Makes an ELF file without kallsyms, but with an ELF symbol table. All symbols are said to be in
/// its code section; those with an upper-case type are global.
pub fn unstripped(symbols: &[Definition]) -> Vec<u8> {
    let mut file = elf(&[0x90; TEXT_LEN as usize]);
    let mut strings = vec![0];
    let mut table = vec![0; 24];
    for (address, kind, name) in symbols {
        table.extend((strings.len() as u32).to_le_bytes()); // st_name
        let bind = u8::from(kind.is_ascii_uppercase());
        table.extend([bind << 4 | 2, 0, 1, 0]); // st_info (STT_FUNC), st_other, st_shndx
        table.extend(address.to_le_bytes()); // st_value
        table.extend(0_u64.to_le_bytes()); // st_size
        strings.extend(name.bytes().chain([0]));
    }
    let table_at = file.len() as u64;
    file.extend(&table);
    let strings_at = file.len() as u64;
    file.extend(&strings);
    file.resize(file.len().next_multiple_of(8), 0);
    let sections_at = file.len() as u64;
    let (table_len, strings_len) = (table.len() as u64, strings.len() as u64);
    // sh_type, sh_flags, sh_addr, sh_offset, sh_size, sh_link, sh_entsize
    for (kind, flags, address, offset, len, link, entry) in [
        (0, 0, 0, 0, 0, 0, 0),
        (1, 6, TEXT, SEGMENT as u64, TEXT_LEN, 0, 0), // PROGBITS, ALLOC and EXECINSTR
        (2, 0, 0, table_at, table_len, 3_u32, 24),    // SYMTAB
        (3, 0, 0, strings_at, strings_len, 0, 0),     // STRTAB
    ] {
        file.extend([0; 4]);
        file.extend(u32::to_le_bytes(kind));
        for word in [flags, address, offset, len] {
            file.extend(u64::to_le_bytes(word));
        }
        file.extend(u32::to_le_bytes(link));
        file.extend([0; 4]);
        for word in [8, entry] {
            file.extend(u64::to_le_bytes(word));
        }
    }
    file[40..48].copy_from_slice(&sections_at.to_le_bytes()); // e_shoff
    file[60..62].copy_from_slice(&4_u16.to_le_bytes()); // e_shnum
    file[62..64].copy_from_slice(&3_u16.to_le_bytes()); // e_shstrndx
    file
}
