//! A kernel of a few functions, in memory.

use std::sync::{Arc, Mutex, PoisonError};

use crate::addr::{GuestPhysAddr, GuestVirtAddr, ProbeId};
use crate::engine::Engine;
use crate::error::RegisterError;
use crate::event::{EventSink, Hit};
use crate::guest::GuestMemory;
use crate::guest::testing::TestMemory;
use crate::image_map::{ImageMap, ImageSegment};
use crate::probe::{Place, ProbeInfo, ProbeSpec};
use crate::symbols::Symbols;
use crate::vcpu::testing::TestVcpu;

#[path = "../../symbols/synthetic.rs"]
#[expect(
    dead_code,
    clippy::duplicate_mod,
    reason = "private to the symbols; a part is needed"
)]
mod synthetic;

pub const TEXT: u64 = synthetic::TEXT;
/// Where the text is in physical memory.
pub const PHYS: u64 = 0x10_0000;
/// Where tests have their stack; translation is by identity.
pub const STACK: u64 = 0x8000;

/// Offset, name, code.
const FUNCTIONS: &[(u64, &str, &[u8])] = &[
    // endbr64; nop5; push %rbp; mov %rsp,%rbp; pop %rbp; ret; int3; nop; int3; int3
    (
        0x000,
        "plain",
        b"\xf3\x0f\x1e\xfa\x0f\x1f\x44\0\0\x55\x48\x89\xe5\x5d\xc3\xcc\x90\xcc\xcc",
    ),
    // call __fentry__; push %rbx; rep movsb; lock incl (%rdi); hlt; sti; iretq; ud2; mov %ax,%ss
    (
        0x040,
        "traced",
        b"\xe8\x3b\0\0\0\x53\xf3\xa4\xf0\xff\x07\xf4\xfb\x48\xcf\x0f\x0b\x8e\xd0\xc3",
    ),
    (0x080, "__fentry__", b"\xc3"),
    (
        0x0c0,
        "free_initmem",
        b"\xf3\x0f\x1e\xfa\x0f\x1f\x44\0\0\x55\xc3",
    ),
    // push %es, which 64-bit mode doesn't have
    (0x100, "data_in_text", b"\x06\x06"),
    (0x140, "twice", b"\x90\xc3"),
    (0x180, "twice", b"\x90\xc3"),
    // the kernel's own breakpoint over a push; int3 after a nop
    (0x1c0, "kprobed", b"\x90\xcc\x90\xc3"),
    // endbr64; nop5, and then the next function
    (0x200, "empty", b"\xf3\x0f\x1e\xfa\x0f\x1f\x44\0\0"),
    (0x209, "after_empty", b"\x90\xc3"),
    // mov %rax,(%rbx); mov %gs:0x10,%rax; jmp . + 2; call plain
    (
        0x240,
        "memory",
        b"\x48\x89\x03\x65\x48\x8b\x04\x25\x10\0\0\0\xeb\0\xe8\xad\xfd\xff\xff\xc3",
    ),
    // lock incl 0x10(%rip); bt %rax,(%rbx)
    (
        0x280,
        "stepped",
        b"\xf0\xff\x05\x10\0\0\0\x48\x0f\xa3\x03\xc3",
    ),
    (0x900, "init_fn", b"\x55\xc3"),
];

/// Collects hits.
#[derive(Default)]
pub struct Hits(Mutex<Vec<Hit>>);

impl EventSink for Hits {
    fn hit(&self, hit: &Hit) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(*hit);
    }
}

pub struct Fixture {
    pub engine: Engine,
    pub memory: TestMemory,
    hits: Arc<Hits>,
}

impl Fixture {
    /// With the image in memory and known.
    pub fn new() -> Self {
        Self::with(Some(image()))
    }

    /// Before it is known where the image is.
    pub fn unmapped() -> Self {
        Self::with(None)
    }

    fn with(image: Option<ImageMap>) -> Self {
        let memory = TestMemory::new(0x20_0000);
        memory.write(GuestPhysAddr(PHYS), &[0xcc; 0x1000]).unwrap();
        let mut definitions = vec![(TEXT, 'T', "_text".into()), (TEXT, 'T', "_stext".into())];
        for (offset, name, code) in FUNCTIONS {
            memory.write(GuestPhysAddr(PHYS + offset), code).unwrap();
            definitions.push((TEXT + offset, 't', (*name).to_owned()));
        }
        for (offset, kind, name) in [
            (0x800, 'T', "_etext"),
            (0x900, 'T', "_sinittext"),
            (0xa00, 'T', "_einittext"),
            (0xb00, 'D', "table"),
            (0x1000, 'D', "_end"),
        ] {
            definitions.push((TEXT + offset, kind, name.to_owned()));
        }
        definitions.sort_by_key(|(address, ..)| *address);
        let symbols = Symbols::from_elf_symtab(&synthetic::unstripped(&definitions)).unwrap();
        let hits = Arc::new(Hits::default());
        let engine = Engine::new(symbols, image, Arc::clone(&hits) as Arc<dyn EventSink>);
        Self {
            engine,
            memory,
            hits,
        }
    }

    pub fn register(&self, places: &[&str]) -> Result<Vec<ProbeInfo>, RegisterError> {
        let specs: Vec<_> = places.iter().map(|place| spec(place)).collect();
        self.engine.register(&self.memory, &specs)
    }

    /// Registers one probe that has to succeed.
    pub fn probe(&self, place: &str) -> ProbeInfo {
        self.register(&[place]).unwrap().remove(0)
    }

    pub fn refusal(&self, place: &str) -> RegisterError {
        self.register(&[place]).unwrap_err()
    }

    pub fn hits(&self) -> Vec<Hit> {
        self.hits.0.lock().unwrap().clone()
    }

    pub fn hit_count(&self, id: ProbeId) -> u64 {
        self.engine
            .list()
            .iter()
            .find(|probe| probe.id == id)
            .unwrap()
            .hits
    }

    /// The byte of the text at an offset, as the guest would fetch it.
    pub fn byte(&self, offset: u64) -> u8 {
        let mut byte = [0];
        self.memory
            .read(GuestPhysAddr(PHYS + offset), &mut byte)
            .unwrap();
        byte[0]
    }

    pub fn set_bytes(&self, offset: u64, bytes: &[u8]) {
        self.memory
            .write(GuestPhysAddr(PHYS + offset), bytes)
            .unwrap();
    }

    pub fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(GuestPhysAddr(at), &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

pub fn image() -> ImageMap {
    ImageMap::new(vec![ImageSegment {
        virt: GuestVirtAddr(TEXT),
        phys: GuestPhysAddr(PHYS),
        len: 0x1000,
    }])
}

/// `[NAME=]SYMBOL[+0xOFFSET]` or `[NAME=]0xADDRESS`.
pub fn spec(text: &str) -> ProbeSpec {
    let (name, place) = match text.split_once('=') {
        Some((name, place)) => (Some(name.to_owned()), place),
        None => (None, text),
    };
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let place = match place.split_once('+') {
        _ if place.starts_with("0x") => Place::Address(GuestVirtAddr(number(place))),
        Some((name, offset)) => Place::Symbol {
            name: name.to_owned(),
            offset: number(offset),
        },
        None => Place::Symbol {
            name: place.to_owned(),
            offset: 0,
        },
    };
    ProbeSpec { name, place }
}

/// A vCPU stopped at an offset of the text.
pub fn vcpu_at(offset: u64) -> TestVcpu {
    let mut vcpu = TestVcpu::default();
    vcpu.registers.rip = TEXT + offset;
    vcpu.registers.rsp = STACK;
    vcpu
}
