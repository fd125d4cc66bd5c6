//! A guest's kprobes, for tests. Addresses are their own translations.

use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr};

use super::KprobeReader;
use crate::btf::Btf;
use crate::btf::synthetic::Builder;
use crate::symbols::Symbols;

/// What the image has to have: names, and offsets from the first.
pub const SYMBOLS: [(&str, u64); 3] = [
    ("kprobe_table", 0),
    ("kprobe_mutex", 0x200),
    ("aggr_pre_handler", 0x220),
];

/// `KPROBE_FLAG_DISABLED`.
pub const DISABLED: u32 = 1 << 1;
/// `KPROBE_FLAG_FTRACE`.
pub const BY_FTRACE: u32 = 1 << 3;

/// Offsets in the structures, unlike any kernel's.
const NODE: u64 = 8;
const ADDRESS: u64 = 0x20;
const HANDLER: u64 = 0x28;
const OPCODE: u64 = 0x30;
const FLAGS: u64 = 0x34;
const COPIED: u64 = 0x40;
const TO: u64 = 0x48;
const LEN: u64 = 0x50;
const OWNER: u64 = 0x10;
const TASK_FLAGS: u64 = 0x4;

/// Makes the types of such a kernel.
pub fn btf() -> Btf {
    let mut b = Builder::new();
    let int = b.int("unsigned int", 4);
    let char = b.int("unsigned char", 1);
    let pointer = b.pointer(0);
    let four = b.array(char, 4);
    let kprobe = b.structure(
        "kprobe",
        0x40,
        &[
            ("hlist", pointer, NODE as u32),
            ("addr", pointer, ADDRESS as u32),
            ("pre_handler", pointer, HANDLER as u32),
            ("opcode", char, OPCODE as u32),
            ("flags", int, FLAGS as u32),
        ],
    );
    let copied = b.structure(
        "arch_optimized_insn",
        0x18,
        &[
            ("copied_insn", four, 0),
            ("insn", pointer, (TO - COPIED) as u32),
            ("size", pointer, (LEN - COPIED) as u32),
        ],
    );
    b.structure(
        "optimized_kprobe",
        0x58,
        &[("kp", kprobe, 0), ("optinsn", copied, COPIED as u32)],
    );
    b.structure("mutex", 0x20, &[("owner", pointer, OWNER as u32)]);
    b.structure("task_struct", 8, &[("flags", int, TASK_FLAGS as u32)]);
    Btf::parse(&b.bytes()).unwrap()
}

/// Makes a reader of the table at these symbols.
pub fn reader(symbols: &Symbols) -> KprobeReader {
    KprobeReader::new(&btf(), symbols).unwrap().unwrap()
}

/// A kprobe in memory.
pub struct Kprobe<'a> {
    /// All memory of the guest.
    pub memory: &'a dyn GuestMemory,
    /// Where it is: below 4 GiB, and its own translation.
    pub own: u64,
}

impl Kprobe<'_> {
    /// Puts it at the head of a list. `table` is where the table is in memory.
    pub fn link(&self, table: u64, list: u64) -> &Self {
        let mut before = [0; 8];
        let head = GuestPhysAddr(table + list * 8);
        self.memory.read(head, &mut before).unwrap();
        self.put(NODE, &before);
        let node = (self.own + NODE).to_le_bytes();
        self.memory.write(head, &node).unwrap();
        self
    }

    /// Sets the instruction that it is on, and that instruction's first byte.
    pub fn on(&self, at: GuestVirtAddr, opcode: u8) -> &Self {
        self.put(ADDRESS, &at.0.to_le_bytes());
        self.put(OPCODE, &[opcode]);
        self
    }

    /// Sets its flags.
    pub fn flags(&self, flags: u32) -> &Self {
        self.put(FLAGS, &flags.to_le_bytes());
        self
    }

    /// Makes it one that the guest can make a jump of.
    pub fn jump(&self, handler: GuestVirtAddr, to: u64, len: u64, copied: [u8; 4]) -> &Self {
        self.put(HANDLER, &handler.0.to_le_bytes());
        self.put(COPIED, &copied);
        self.put(TO, &to.to_le_bytes());
        self.put(LEN, &len.to_le_bytes());
        self
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        let at = GuestPhysAddr(self.own + offset);
        self.memory.write(at, bytes).unwrap();
    }
}

/// Makes a task the holder of the mutex, or frees the mutex if `task` is 0. `mutex` is its address
/// in memory.
pub fn hold(memory: &dyn GuestMemory, mutex: u64, task: u64, task_flags: u32) {
    let owner = (task | 1).to_le_bytes();
    let at = GuestPhysAddr(mutex + OWNER);
    memory.write(at, &owner).unwrap();
    let at = GuestPhysAddr(task + TASK_FLAGS);
    memory.write(at, &task_flags.to_le_bytes()).unwrap();
}
