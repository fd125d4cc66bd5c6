//! A small guest with a module, for tests. Addresses are their own translations.

use std::sync::Arc;

use guest_state::testing::TestMemory;
use guest_state::{GuestMemory, GuestPhysAddr};

use crate::btf::Btf;
use crate::btf::synthetic::Builder;

/// How much memory is enough.
pub const MEMORY: usize = 0x10000;
/// The head of the list of modules.
pub const LIST: u64 = 0x100;
/// Where the first module's parts are.
pub const MODULE: u64 = 0x1000;
/// Its text.
pub const CODE: u64 = 0x2000;
/// Its init text.
pub const INIT_CODE: u64 = 0x3000;
/// Its symbols.
pub const DATA: u64 = 0x4000;
/// The head of the list of modules' types.
pub const TYPES_LIST: u64 = 0x110;
/// The types of the first module.
pub const TYPES: u64 = 0x5800;

/// How `struct module` says where its text is.
#[derive(Clone, Copy, PartialEq)]
pub enum Version {
    /// In `core_layout` and `init_layout`.
    V6_1,
    /// In `mem`.
    V6_12,
}

/// All of them.
pub const VERSIONS: [Version; 2] = [Version::V6_1, Version::V6_12];

/// Makes the types of such a kernel.
pub fn btf(version: Version) -> Btf {
    Btf::parse(&types(version).bytes()).unwrap()
}

/// As [`btf`], before the section is made of them.
pub fn types(version: Version) -> Builder {
    let mut b = Builder::new();
    let int = b.int("unsigned int", 4);
    let char = b.int("char", 1);
    let pointer = b.pointer(0);
    let name = b.array(char, 56);
    let list = b.structure(
        "list_head",
        16,
        &[("next", pointer, 0), ("prev", pointer, 8)],
    );
    let state = b.enumeration(
        "module_state",
        &[
            ("MODULE_STATE_LIVE", 0),
            ("MODULE_STATE_COMING", 1),
            ("MODULE_STATE_GOING", 2),
            ("MODULE_STATE_UNFORMED", 3),
        ],
    );
    b.structure(
        "mod_kallsyms",
        32,
        &[
            ("symtab", pointer, 0),
            ("num_symtab", int, 8),
            ("strtab", pointer, 16),
        ],
    );
    b.structure("bug_entry", 12, &[]);
    b.structure("exception_table_entry", 12, &[]);
    let mut members = vec![
        ("state", state, 0),
        ("list", list, 8),
        ("name", name, 24),
        ("kallsyms", pointer, 80),
    ];
    for (i, (table, count)) in POINTERS.into_iter().enumerate() {
        let offset = POINTERS_AT as u32 + i as u32 * 16;
        members.extend([(table, pointer, offset), (count, int, offset + 8)]);
    }
    if version == Version::V6_1 {
        let layout = b.structure(
            "module_layout",
            24,
            &[
                ("base", pointer, 0),
                ("size", int, 8),
                ("text_size", int, 12),
            ],
        );
        members.extend([("core_layout", layout, 400), ("init_layout", layout, 424)]);
    } else {
        b.enumeration("mod_mem_type", &[("MOD_TEXT", 0), ("MOD_INIT_TEXT", 4)]);
        let memory = b.structure(
            "module_memory",
            24,
            &[("base", pointer, 0), ("size", int, 8)],
        );
        let memories = b.array(memory, 7);
        members.push(("mem", memories, 400));
    }
    let module = b.structure("module", 600, &members);
    let module = b.pointer(module);
    let btf = b.structure("btf", 64, &[("data", pointer, 0), ("data_size", int, 16)]);
    let btf = b.pointer(btf);
    b.structure(
        "btf_module",
        32,
        &[("list", list, 0), ("module", module, 16), ("btf", btf, 24)],
    );
    b
}

/// Members that point at tables, and those that say how long they are.
const POINTERS: [(&str, &str); 8] = [
    ("ftrace_callsites", "num_ftrace_callsites"),
    ("jump_entries", "num_jump_entries"),
    ("static_call_sites", "num_static_call_sites"),
    ("bug_table", "num_bugs"),
    ("kprobe_blacklist", "num_kprobe_blacklist"),
    ("extable", "num_exentries"),
    ("noinstr_text_start", "noinstr_text_size"),
    ("kprobes_text_start", "kprobes_text_size"),
];
const POINTERS_AT: u64 = 96;

/// A guest with one module.
pub struct Guest {
    /// All its memory.
    pub memory: Arc<TestMemory>,
    /// How its modules are laid out.
    pub version: Version,
}

impl Guest {
    /// Makes a guest in memory of its own.
    pub fn new(version: Version) -> Self {
        Self::within(Arc::new(TestMemory::new(MEMORY)), version)
    }

    /// Makes a guest in memory that holds other things as well, beyond [`MEMORY`].
    pub fn within(memory: Arc<TestMemory>, version: Version) -> Self {
        let guest = Self { memory, version };
        guest.link(&[MODULE]);
        guest.write(MODULE, &1_u32.to_le_bytes());
        guest.write(MODULE + 24, b"ext4\0");
        guest.write(CODE, &[0x90; 0x100]);
        guest.write(INIT_CODE, &[0x90; 0x40]);
        guest.texts([(CODE, 0x100), (INIT_CODE, 0x40)]);
        // Symbols: name, type, address, size.
        guest.put(MODULE + 80, DATA);
        guest.put(DATA, DATA + 0x100);
        guest.put(DATA + 16, DATA + 0x800);
        let symbols = [
            ("", 0, 0, 0),
            ("ext4_write", 2, CODE + 0x40, 0x20),
            ("ext4_read", 2, CODE, 0x30),
            ("a_datum", 1, DATA, 8),
            ("elsewhere", 2, 0x8000, 8),
            ("same", 2, CODE + 0x60, 0),
            ("same", 2, CODE + 0x80, 0),
            ("bad name", 2, CODE + 0x90, 8),
            ("__SCT__hook", 2, CODE + 0xe0, 0x100),
            ("init_module", 2, INIT_CODE + 0x10, 0),
        ];
        guest.write(DATA + 8, &(symbols.len() as u32).to_le_bytes());
        let mut name_at = 0;
        for (i, (name, kind, address, size)) in (0..).zip(symbols) {
            let at = DATA + 0x100 + i * 24;
            guest.write(at, &(name_at as u32).to_le_bytes());
            guest.write(at + 4, &[0x10 | kind]);
            guest.put(at + 8, address);
            guest.put(at + 16, size);
            guest.write(DATA + 0x800 + name_at, name.as_bytes());
            name_at += name.len() as u64 + 1;
        }
        guest
    }

    /// Writes bytes.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write(GuestPhysAddr(at), bytes).unwrap();
    }

    /// Writes a word of 64 bits.
    pub fn put(&self, at: u64, value: u64) {
        self.write(at, &value.to_le_bytes());
    }

    /// Puts modules into the list.
    pub fn link(&self, modules: &[u64]) {
        let entries: Vec<_> = modules.iter().map(|module| module + 8).collect();
        let mut from = LIST;
        for entry in entries.into_iter().chain([LIST]) {
            self.put(from, entry);
            from = entry;
        }
    }

    /// Gives a module types, behind those of another one.
    pub fn types(&self, module: u64, section: &[u8]) {
        let (other, own, btf, data) = (TYPES, TYPES + 0x40, TYPES + 0x80, TYPES + 0x100);
        for (at, next) in [(TYPES_LIST, other), (other, own), (own, TYPES_LIST)] {
            self.put(at, next);
        }
        self.put(other + 16, 0xdead);
        self.put(own + 16, module);
        self.put(own + 24, btf);
        self.put(btf, data);
        self.write(btf + 16, &(section.len() as u32).to_le_bytes());
        self.write(data, section);
    }

    /// Sets the bounds of text and init text.
    pub fn texts(&self, texts: [(u64, u32); 2]) {
        let (places, size) = match self.version {
            Version::V6_1 => ([400, 424], 12),
            Version::V6_12 => ([400, 400 + 4 * 24], 8),
        };
        for (place, (base, len)) in places.into_iter().zip(texts) {
            self.put(MODULE + place, base);
            self.write(MODULE + place + size, &len.to_le_bytes());
        }
    }

    /// Sets a pointer and its count.
    pub fn pointer(&self, name: &str, at: u64, count: u32) {
        let i = POINTERS.iter().position(|(table, _)| *table == name);
        let offset = POINTERS_AT + i.unwrap() as u64 * 16;
        self.put(MODULE + offset, at);
        self.write(MODULE + offset + 8, &count.to_le_bytes());
    }
}
