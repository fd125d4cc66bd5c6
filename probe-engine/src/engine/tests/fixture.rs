//! A kernel of a few functions, in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use guest_kernel::ImageMap;
use guest_kernel::Kernel;
use guest_kernel::blacklist::{Blacklist, BlacklistEntry, Reason};
use guest_kernel::kprobes;
use guest_kernel::symbols::Symbols;
use guest_kernel::symbols::synthetic;
use guest_state::testing::{TestGuest, TestMemory, TestVcpu};
use guest_state::{
    Access, Action, ArenaMemory, GuestMemory, GuestPhysAddr, GuestVirtAddr, PhysRange, Segment,
    Step,
};
use parking_lot::Mutex;

use crate::arena::Arena;
use crate::engine::{Draft, Engine};
use crate::error::RegisterError;
use crate::event::{Detail, Event, EventSink};
use crate::probe::{Options, Place, ProbeId, ProbeInfo, ProbeKind, ProbeSpec, Switch};

pub const TEXT: u64 = synthetic::TEXT;
/// Where the text is in physical memory.
pub const PHYS: u64 = 0x10_0000;
/// Where tests have their stack. Addresses are translated to themselves.
pub const STACK: u64 = 0x8000;
/// The number of vCPUs that the engine is given.
pub const VCPUS: u32 = 2;
const MEMORY: usize = 0x80_0000;
/// Length of the image, its page table included.
const IMAGE_LEN: u64 = 0x3000;
/// Offset of the kernel's table of the addresses of its CPUs' variables.
const PER_CPU_OFFSET: u64 = 0xb40;
/// Offset of the kernel's table of its own kprobes, see [`kprobes::synthetic::SYMBOLS`].
pub const KPROBES: u64 = 0xc00;
/// Offset of `level3_kernel_pgt`.
pub const TABLE: u64 = 0x2000;
/// The arena's memory.
const REGION: ArenaMemory = ArenaMemory {
    tables: GuestPhysAddr(0xa000),
    code: PhysRange {
        start: GuestPhysAddr(0x40_0000),
        len: 0x20_0000,
    },
    data: PhysRange {
        start: GuestPhysAddr(0x60_0000),
        len: 0x20_0000,
    },
    vcpus: VCPUS,
};

/// The same with room for detours and rings. Most of it is never touched.
const WIDE: ArenaMemory = ArenaMemory {
    tables: GuestPhysAddr(0xa000),
    code: PhysRange {
        start: GuestPhysAddr(0x4000_0000),
        len: 0x4000_0000,
    },
    data: PhysRange {
        start: GuestPhysAddr(0x1000_0000),
        len: 0x400_0000,
    },
    vcpus: VCPUS,
};
/// Where the variables of the first CPU begin, and the distance to those of the next.
const PER_CPU: u64 = 0xffff_8880_0f00_0000;
const PER_CPU_STRIDE: u64 = 0x4_0000;

/// A step with all other vCPUs stopped, of a guest without handlers.
pub const ALONE: Action = Action::Step(Step {
    alone: true,
    run_to: None,
    handlers: [None; 4],
});

/// Offset, name, code.
pub type Function = (u64, &'static str, &'static [u8]);

const FUNCTIONS: &[Function] = &[
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
    // rdtsc; div %rcx; wrmsr; rep movsb; fadd %st(1),%st; lock incl (%rdi); ret
    (
        0x2c0,
        "copied",
        b"\x0f\x31\x48\xf7\xf1\x0f\x30\xf3\xa4\xd8\xc1\xf0\xff\x07\xc3",
    ),
    // push %rbp; mov %rsp,%rbp; push %rbx; sub $8,%rsp; pop %rbx; ret
    (
        0x340,
        "framed",
        b"\x55\x48\x89\xe5\x53\x48\x83\xec\x08\x5b\xc3",
    ),
    // sub $0x10,%rsp; mov $1,%eax; jmp framed; a jump back to the second instruction
    (0x380, "wide", b"\x48\x83\xec\x10\xb8\x01\0\0\0\xeb\xf9\xc3"),
    // Each: push %rbp; ret
    (0x300, "do_init_module", b"\x55\xc3"),
    (0x310, "ftrace_free_mem", b"\x55\xc3"),
    (0x320, "free_module", b"\x55\xc3"),
    (0x900, "init_fn", b"\x55\xc3"),
    // rdtsc; ret
    (0x910, "init_copied", b"\x0f\x31\xc3"),
];

/// Collects events, and counts how often probes may have begun to wait for jumps.
#[derive(Default)]
pub struct Events {
    collected: Mutex<Vec<Event>>,
    may_jump: AtomicUsize,
    nobody_reads: AtomicBool,
}

impl EventSink for Events {
    fn event(&self, event: &Event) {
        assert!(self.is_wanted(), "an event that nobody reads was made");
        self.collected.lock().push(event.clone());
    }

    fn is_wanted(&self) -> bool {
        !self.nobody_reads.load(Ordering::Relaxed)
    }

    fn may_jump(&self) {
        self.may_jump.fetch_add(1, Ordering::Relaxed);
    }
}

pub struct Fixture {
    pub engine: Engine,
    pub memory: Arc<TestMemory>,
    events: Arc<Events>,
}

impl Fixture {
    /// A fixture with the image in memory, which the engine knows.
    pub fn new() -> Self {
        Self::with(image(), |_| {})
    }

    /// A fixture with executable memory for copies and returns.
    pub fn with_arena() -> Self {
        Self::with_arena_and(|_| {})
    }

    /// As [`with_arena`](Self::with_arena), with further knowledge of the kernel.
    pub fn with_arena_and(know: impl FnOnce(&mut Kernel)) -> Self {
        let f = Self::with(image(), know);
        f.engine.install_arena(&f.guest(), REGION).unwrap();
        f
    }

    /// A fixture with all that jumps need, in a kernel that has started.
    pub fn with_jumps(know: impl FnOnce(&mut Kernel)) -> Self {
        Self::with_cpus_apart(PER_CPU_STRIDE, &[], know)
    }

    /// As [`with_jumps`](Self::with_jumps), with these functions, too.
    pub fn with_jumps_and_functions(more: &[Function], know: impl FnOnce(&mut Kernel)) -> Self {
        Self::with_cpus_apart(PER_CPU_STRIDE, more, know)
    }

    /// As [`with_jumps`](Self::with_jumps), with room for the counters of a thousand detours
    /// between the CPUs' variables.
    pub fn with_few_counters() -> Self {
        Self::with_cpus_apart(0x1000, &[], |_| {})
    }

    fn with_cpus_apart(apart: u64, more: &[Function], know: impl FnOnce(&mut Kernel)) -> Self {
        let f = Self::in_memory(0x8000_0000, image(), more, know);
        for cpu in 0..u64::from(VCPUS) {
            f.set_word(PHYS + PER_CPU_OFFSET + 8 * cpu, PER_CPU + cpu * apart);
        }
        f.engine.install_arena(&f.guest(), WIDE).unwrap();
        f.start();
        f
    }

    /// Makes the kernel free its init text.
    pub fn start(&self) {
        self.engine.assume_started();
    }

    /// Returns how often the engine has reported that probes may now become jumps.
    pub fn told_of_jumps(&self) -> usize {
        self.events.may_jump.load(Ordering::Relaxed)
    }

    /// Makes the waiting probes jumps. Returns how many became jumps.
    pub fn optimize(&self) -> usize {
        let prepared = self.engine.prepare_jumps(&*self.memory);
        self.engine.commit_jumps(&self.guest(), &prepared).unwrap()
    }

    /// Returns how many more copies there is room for.
    pub fn vacant_slots(&self) -> usize {
        self.engine.arena.with(|arena| arena.vacant()).unwrap_or(0)
    }

    /// Returns code or data of the arena that has room for jumps.
    pub fn wide_bytes(&self, at: GuestVirtAddr, len: usize) -> Vec<u8> {
        let phys = self.engine.arena.phys(at).unwrap();
        self.bytes_at(phys.0, len)
    }

    /// A fixture with an image, and with further knowledge of the kernel.
    pub fn with(image: ImageMap, know: impl FnOnce(&mut Kernel)) -> Self {
        Self::in_memory(MEMORY, image, &[], know)
    }

    fn in_memory(
        len: usize,
        image: ImageMap,
        more: &[Function],
        know: impl FnOnce(&mut Kernel),
    ) -> Self {
        let memory = TestMemory::new(len);
        memory.write(GuestPhysAddr(PHYS), &[0xcc; 0x1000]).unwrap();
        let mut definitions = vec![(TEXT, 'T', "_text".into()), (TEXT, 'T', "_stext".into())];
        for (offset, name, code) in FUNCTIONS.iter().chain(more) {
            memory.write(GuestPhysAddr(PHYS + offset), code).unwrap();
            definitions.push((TEXT + offset, 't', (*name).to_owned()));
        }
        for (offset, kind, name) in [
            (0x800, 'T', "_etext"),
            (0x900, 'T', "_sinittext"),
            (0xa00, 'T', "_einittext"),
            (0xb00, 'D', "table"),
            (PER_CPU_OFFSET, 'D', "__per_cpu_offset"),
            (0x1000, 'D', "_end"),
            (TABLE, 'D', "level3_kernel_pgt"),
        ] {
            definitions.push((TEXT + offset, kind, name.to_owned()));
        }
        let none = GuestPhysAddr(PHYS + KPROBES);
        memory.write(none, &[0; 0x220]).unwrap();
        for (name, offset) in kprobes::synthetic::SYMBOLS {
            definitions.push((TEXT + KPROBES + offset, 'd', name.to_owned()));
        }
        definitions.push((0x1_0040, 'A', "per_cpu".to_owned()));
        definitions.push((
            guest_kernel::modules::synthetic::LIST,
            'd',
            "modules".to_owned(),
        ));
        definitions.sort_by_key(|(address, ..)| *address);
        // Entries like the kernel's own, for its image and for the GiB above it.
        for (index, entry) in [(510, 0x5063_u64), (511, 0x6067)] {
            let at = GuestPhysAddr(PHYS + TABLE + index * 8);
            memory.write(at, &entry.to_le_bytes()).unwrap();
        }
        let symbols = Symbols::from_elf_symtab(&synthetic::unstripped(&definitions)).unwrap();
        let events = Arc::new(Events::default());
        let mut kernel = Kernel::from_symbols(symbols);
        kernel.has_ftrace = true;
        kernel.blacklist = blacklist(&[]);
        know(&mut kernel);
        let sink = Arc::clone(&events) as Arc<dyn EventSink>;
        Self {
            engine: Engine::new(kernel, image, VCPUS, sink),
            memory: Arc::new(memory),
            events,
        }
    }

    /// The guest, stopped, with one vCPU that isn't at any probe.
    pub fn guest(&self) -> TestGuest<'_> {
        let mut guest = TestGuest::new(&self.memory);
        // Addresses above aren't RAM.
        guest.len = guest.len.min(MEMORY as u64);
        guest
    }

    /// The guest, stopped with this vCPU.
    pub fn guest_with(&self, vcpu: &TestVcpu) -> TestGuest<'_> {
        let guest = self.guest();
        *guest.vcpus.lock().unwrap() = vec![vcpu.clone()];
        guest
    }

    pub fn register(&self, places: &[&str]) -> Result<Vec<ProbeInfo>, RegisterError> {
        let specs: Vec<_> = places.iter().map(|place| spec(place)).collect();
        Ok(self.engine.register(&self.guest(), &specs)?)
    }

    /// Registers a drafted batch that has to succeed.
    pub fn register_drafted(&self, draft: &mut Draft<'_>) -> Vec<ProbeInfo> {
        let ids = self.engine.register_drafted(&self.guest(), draft).unwrap();
        self.engine.describe(ids)
    }

    /// Registers one probe that has to succeed.
    pub fn probe(&self, place: &str) -> ProbeInfo {
        self.register(&[place]).unwrap().remove(0)
    }

    pub fn refusal(&self, place: &str) -> RegisterError {
        self.register(&[place]).unwrap_err()
    }

    pub fn unregister(&self, ids: &[ProbeId]) {
        self.engine.unregister(&self.guest(), ids).unwrap();
    }

    pub fn enable(&self, id: ProbeId, on: bool) {
        self.engine
            .switch(&self.guest(), Some(&[id]), Switch::Enabled(on))
            .unwrap();
    }

    /// Makes a vCPU trap at an int3.
    pub fn trap(&self, vcpu: &mut TestVcpu) -> Action {
        self.engine.on_breakpoint(&*self.memory, vcpu)
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.collected.lock().clone()
    }

    /// Sets whether clients read events from now on.
    pub fn read_events(&self, on: bool) {
        self.events.nobody_reads.store(!on, Ordering::Relaxed);
    }

    /// Returns the events so far, each with its probe.
    pub fn details(&self) -> Vec<(ProbeId, Detail)> {
        self.events()
            .into_iter()
            .map(|event| (event.probe, event.detail))
            .collect()
    }

    pub fn info(&self, id: ProbeId) -> ProbeInfo {
        let mut list = self.engine.list();
        let index = list.iter().position(|probe| probe.id == id).unwrap();
        list.swap_remove(index)
    }

    pub fn hit_count(&self, id: ProbeId) -> u64 {
        self.info(id).hits
    }

    /// The byte of the text at an offset, as the guest would fetch it.
    pub fn byte(&self, offset: u64) -> u8 {
        self.bytes_at(PHYS + offset, 1)[0]
    }

    pub fn set_bytes(&self, offset: u64, bytes: &[u8]) {
        self.memory
            .write(GuestPhysAddr(PHYS + offset), bytes)
            .unwrap();
    }

    /// Bytes of physical memory.
    pub fn bytes_at(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(GuestPhysAddr(at), &mut bytes).unwrap();
        bytes
    }

    /// Code in the arena.
    pub fn arena_bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let from_top = (1 << 31) - (at - 0xffff_ffff_0000_0000);
        self.bytes_at(REGION.code.start.0 + REGION.code.len - from_top, len)
    }

    /// Frees the slots that can be freed. Returns how many have no user then.
    pub fn reclaim(&self) -> usize {
        let reclaim = |arena: &mut Arena| arena.reclaim(&*self.memory, &[], &[], &[]);
        self.engine.arena.with(reclaim).unwrap().unwrap()
    }

    pub fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(GuestPhysAddr(at), &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    pub fn set_word(&self, at: u64, word: u64) {
        let word = word.to_le_bytes();
        self.memory.write(GuestPhysAddr(at), &word).unwrap();
    }
}

/// GS base of a CPU.
pub fn gs_base(cpu: u64) -> u64 {
    PER_CPU + cpu * PER_CPU_STRIDE
}

pub fn image() -> ImageMap {
    ImageMap::new(vec![Segment {
        virt: GuestVirtAddr(TEXT),
        phys: GuestPhysAddr(PHYS),
        len: IMAGE_LEN,
    }])
}

/// The functions' ftrace sites, and these places: offset, length, reason.
pub fn blacklist(places: &[(u64, u64, Reason)]) -> Blacklist {
    let sites = [0x004, 0x040, 0x0c4, 0x204].map(|offset| (offset, 5, Reason::FtraceSite));
    let entries = sites.iter().chain(places).map(|(offset, len, reason)| {
        let start = GuestVirtAddr(TEXT + offset);
        BlacklistEntry {
            range: start..start.wrapping_add(*len),
            reason: *reason,
        }
    });
    Blacklist::new(entries.collect()).unwrap()
}

/// `[NAME=][MODULE:]SYMBOL[+0xOFFSET]` or `[NAME=]0xADDRESS`, then nothing, `%post`, `%fault`,
/// `%both`, `%return`, or `/LENGTH[r]` for a watchpoint of writes or accesses.
pub fn spec(text: &str) -> ProbeSpec {
    let (name, rest) = match text.split_once('=') {
        Some((name, rest)) => (Some(name.to_owned()), rest),
        None => (None, text),
    };
    let (place, kind) = if let Some((place, what)) = rest.split_once('%') {
        let kind = match what {
            "return" => ProbeKind::Return { maxactive: None },
            what => ProbeKind::Instruction {
                post: ["post", "both"].contains(&what),
                fault: ["fault", "both"].contains(&what),
            },
        };
        (place, kind)
    } else if let Some((place, len)) = rest.split_once('/') {
        let kind = ProbeKind::Watch {
            len: len.trim_end_matches('r').parse().unwrap(),
            access: match len.ends_with('r') {
                true => Access::ReadWrite,
                false => Access::Write,
            },
        };
        (place, kind)
    } else {
        (rest, ProbeKind::PRE)
    };
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let place = if place.starts_with("0x") {
        Place::Address(GuestVirtAddr(number(place)))
    } else {
        let (module, place) = match place.split_once(':') {
            Some((module, place)) => (Some(module.to_owned()), place),
            None => (None, place),
        };
        let (name, offset) = match place.split_once('+') {
            Some((name, offset)) => (name, number(offset)),
            None => (place, 0),
        };
        Place::Symbol {
            module,
            name: name.to_owned(),
            offset,
        }
    };
    ProbeSpec {
        name,
        place,
        kind,
        enabled: true,
        options: Options::default(),
    }
}

/// A vCPU stopped at an offset of the text.
pub fn vcpu_at(offset: u64) -> TestVcpu {
    let mut vcpu = TestVcpu::default();
    vcpu.registers.rip = TEXT + offset;
    vcpu.registers.rsp = STACK;
    vcpu
}
