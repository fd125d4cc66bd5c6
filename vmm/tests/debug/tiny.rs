//! Tiny guests for the tests: assembled code in an ELF file, and a trap handler
//! made of a closure.

use std::{
    path::PathBuf,
    process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use guest_state::{
    Action, Debugging, GuestMemory, GuestPhysAddr, Registers, StoppedGuest, Trap, TrapHandler,
    Vcpu, VcpuId,
};
use iced_x86::{
    IcedError,
    code_asm::{CodeAssembler, al, dword_ptr, dx, rax, rsp},
};
use vmm::confinement::Confinement;
use vmm::{BootMethod, Ending, StoppedVm, Vm, VmConfig};

/// Where the code is and runs. The stack grows down from here.
pub const TEXT: u64 = 0x20_0000;
/// Zeroed memory for the guest's data.
pub const DATA: u64 = TEXT + 0x1_0000;
const DATA_SIZE: u64 = 0x1_0000;
/// The interrupt table, in the guest's data.
const IDT: u64 = DATA + 0xe000;
/// The operand of `lidt`.
pub const IDT_REGISTER: u64 = DATA + 0xf000;
const VECTORS: u64 = 32;
/// Selector of the code segment that the monitor's boot code makes.
pub const CODE_SELECTOR: u64 = 0x10;
/// TF of RFLAGS.
pub const TRAP_FLAG: u64 = 1 << 8;

/// A guest that has not run yet.
pub struct Tiny {
    pub vm: Arc<Vm>,
    file: PathBuf,
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _gone_or_left_behind = std::fs::remove_file(&self.file);
    }
}

/// Makes a guest; the code starts with a stack in place.
pub fn guest(vcpus: u32, code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Tiny {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut a = CodeAssembler::new(64).unwrap();
    a.mov(rsp, TEXT).unwrap();
    code(&mut a).unwrap();
    let file = std::env::temp_dir().join(format!(
        "vmm-tiny-{}-{}",
        process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::write(&file, elf(&a.assemble(TEXT).unwrap())).unwrap();
    let config = VmConfig {
        kernel: file.as_path().into(),
        initramfs: None,
        cmdline: String::new(),
        huge_pages: false,
        numa_nodes: 1,
        memory_mib: 64,
        vcpus,
        boot: BootMethod::Elf,
        max_file: vmm::MAX_FILE,
        kernel_cache: None,
        devices: vmm::Devices::default(),
    };
    let kernel = config.read_kernel().unwrap();
    let vm = Vm::create(&config, &kernel, &Confinement::none()).unwrap();
    Tiny {
        vm: Arc::new(vm),
        file,
    }
}

impl Tiny {
    /// Starts it and waits for its end, which must be a power-off.
    pub fn run(&self, handler: impl FnMut(&mut Hit<'_>) -> Action + Send + 'static) {
        self.start(handler);
        assert_eq!(self.vm.wait(), Ending::PowerOff);
    }

    pub fn start(&self, handler: impl FnMut(&mut Hit<'_>) -> Action + Send + 'static) {
        let handler: Arc<dyn TrapHandler> = Arc::new(Closure(Mutex::new(Box::new(handler))));
        self.vm.start(&handler).unwrap();
    }

    /// Maps the first 2 MiB of the arena's code where they lie.
    pub fn map_arena(&self) {
        let arena = self.vm.arena();
        self.vm.stopped(|guest| {
            let cr3 = guest.control(VcpuId(0)).unwrap().cr3;
            let third_level = word(guest.memory(), cr3) & !0xfff;
            let (directory, code) = (arena.tables.0, arena.code.start.0);
            put(guest, third_level + (code >> 30) * 8, directory | 3);
            // Present, writable, a 2 MiB page.
            put(guest, directory, code | 0x83);
        });
    }

    /// Makes what [`map_arena`](Self::map_arena) has mapped read-only.
    pub fn protect_arena(&self) {
        let arena = self.vm.arena();
        // Present, accessed, dirty, a 2 MiB page.
        let entry = arena.code.start.0 | 0xe1;
        self.vm.stopped(|guest| put(guest, arena.tables.0, entry));
    }

    /// Puts code into the arena.
    pub fn slot(
        &self,
        index: u64,
        code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    ) -> u64 {
        let at = self.vm.arena().code.start.0 + index * 0x40;
        let mut a = CodeAssembler::new(64).unwrap();
        code(&mut a).unwrap();
        let bytes = a.assemble(at).unwrap();
        self.vm.stopped(|guest| write(guest.memory(), at, &bytes));
        at
    }

    /// Sets interrupt gates for exceptions, and [`IDT_REGISTER`].
    pub fn gates(&self, gates: &[(u64, u64)]) {
        self.gates_of(0x8e, gates);
    }

    /// The same with gates of another kind: P, DPL and type (SDM vol. 3, 6.11).
    pub fn gates_of(&self, kind: u64, gates: &[(u64, u64)]) {
        self.vm.stopped(|guest| {
            for &(vector, handler) in gates {
                let low = handler & 0xffff | CODE_SELECTOR << 16 | kind << 40;
                put(guest, IDT + vector * 16, low | handler >> 16 << 48);
                put(guest, IDT + vector * 16 + 8, handler >> 32);
            }
            let limit = (VECTORS * 16 - 1) as u16;
            write(guest.memory(), IDT_REGISTER, &limit.to_le_bytes());
            put(guest, IDT_REGISTER + 2, IDT);
        });
    }

    /// General registers of a vCPU.
    pub fn registers(&self, vcpu: u32) -> Registers {
        self.vm
            .stopped(|guest| guest.registers(VcpuId(vcpu)).unwrap())
    }
}

pub fn put(guest: &StoppedVm<'_>, at: u64, value: u64) {
    write(guest.memory(), at, &value.to_le_bytes());
}

pub fn write(memory: &dyn GuestMemory, at: u64, bytes: &[u8]) {
    memory.write(GuestPhysAddr(at), bytes).unwrap();
}

pub fn word(memory: &dyn GuestMemory, at: u64) -> u64 {
    memory.read_u64(GuestPhysAddr(at)).unwrap()
}

/// Makes int3s come as traps, and watches nothing.
pub fn catch_int3s(guest: &StoppedVm<'_>) {
    let debugging = Debugging {
        breakpoints: true,
        watchpoints: Vec::new(),
    };
    guest.set_debugging(&debugging).unwrap();
}

/// Where the second vCPU starts, in real mode.
pub const SECOND_START: u64 = 0x8000;

/// Sends the second vCPU INIT and SIPI, by ICR of the local APIC (SDM vol. 3,
/// 11.6.1).
pub fn start_second_vcpu(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, 0xfee0_0300_u64)?;
    a.mov(dword_ptr(rax + 0x10), 1 << 24)?;
    a.mov(dword_ptr(rax), 0x4500)?;
    a.mov(dword_ptr(rax), 0x4600 | (SECOND_START >> 12) as i32)
}

/// Switches the guest off.
pub fn power_off(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(dx, 0x600)?;
    a.mov(al, 5 << 2 | 1 << 5)?;
    a.out(dx, al)?;
    a.ud2()
}

/// A trap as a test's handler sees it.
pub struct Hit<'a> {
    pub trap: Trap,
    pub vcpu: &'a mut dyn Vcpu,
    pub memory: &'a dyn GuestMemory,
    /// This is `before_step`.
    pub before_step: bool,
}

impl Hit<'_> {
    pub fn rip(&self) -> u64 {
        self.vcpu.registers().rip
    }

    pub fn go_to(&mut self, rip: u64) {
        self.vcpu.registers_mut().rip = rip;
    }

    /// A word on the stack.
    pub fn stack(&self, index: u64) -> u64 {
        word(self.memory, self.vcpu.registers().rsp + index * 8)
    }

    pub fn set_stack(&self, index: u64, value: u64) {
        let at = self.vcpu.registers().rsp + index * 8;
        write(self.memory, at, &value.to_le_bytes());
    }
}

type Answer = dyn FnMut(&mut Hit<'_>) -> Action + Send;

struct Closure(Mutex<Box<Answer>>);

impl TrapHandler for Closure {
    fn trap(&self, vcpu: &mut dyn Vcpu, memory: &dyn GuestMemory, trap: Trap) -> Action {
        self.0.lock().unwrap()(&mut Hit {
            trap,
            vcpu,
            memory,
            before_step: false,
        })
    }

    fn before_step(&self, vcpu: &mut dyn Vcpu, memory: &dyn GuestMemory) -> bool {
        let action = self.0.lock().unwrap()(&mut Hit {
            trap: Trap::Breakpoint,
            vcpu,
            memory,
            before_step: true,
        });
        action == Action::Resume
    }
}

/// An ELF64 executable of one segment.
fn elf(text: &[u8]) -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    file.resize(16, 0);
    // ET_EXEC, EM_X86_64, version 1; entry; program headers at 64; no sections.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for value in [TEXT, 64, 0] {
        file.extend(value.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for value in [64_u16, 56, 1, 64, 0, 0] {
        file.extend(value.to_le_bytes());
    }
    // PT_LOAD, readable, writable, executable.
    file.extend([1, 0, 0, 0, 7, 0, 0, 0]);
    let in_memory = DATA + DATA_SIZE - TEXT;
    for value in [120, TEXT, TEXT, text.len() as u64, in_memory, 0x1000] {
        file.extend(value.to_le_bytes());
    }
    file.extend(text);
    file
}
