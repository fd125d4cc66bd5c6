//! A guest that never runs: a kernel's image in memory, a stack, page tables, and one vCPU.

use guest_kernel::symbols::{LookupError, Symbols};
use guest_state::testing::TestVcpu;
use guest_state::{
    ControlRegisters, Debugging, DebuggingError, GuestMemory, GuestPhysAddr, MemoryError,
    PhysRange, Registers, StoppedGuest, VcpuError, VcpuId,
};
use probe_engine::arena::InstallError;
use probe_engine::engine::Engine;
use vmm::{GuestRam, RamError};

use crate::image::Image;

/// MiB of the guest's own memory: more than a kernel needs.
const RAM_MIB: u64 = 256;
/// Three page tables of ours.
const TABLES: u64 = 0xa000;
/// Memory that is mapped by pages of 4 KiB, as the kernel maps its stacks (`CONFIG_VMAP_STACK`).
const WINDOW: u64 = 0xffff_c900_0000_0000;
const WINDOW_PHYS: u64 = 192 << 20;
const WINDOW_LEN: u64 = 2 << 20;
/// Top of the stack: all around it is mapped.
pub const STACK: u64 = WINDOW + WINDOW_LEN / 2;

/// Present, writable, accessed, dirty.
const TABLE: u64 = 0x63;
const NO_EXECUTE: u64 = 1 << 63;

/// Why there is no such guest.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The host has no memory for it.
    #[error(transparent)]
    Map(#[from] RamError),
    /// The kernel is larger than the memory.
    #[error("the kernel does not fit into the guest's memory")]
    Memory(#[from] MemoryError),
    /// The kernel has no page tables.
    #[error(transparent)]
    Symbol(#[from] LookupError),
    /// Its page tables aren't in the image.
    #[error("{0} is not in the kernel's image")]
    NotLoaded(&'static str),
    /// There is no arena.
    #[error("can't install the arena")]
    Arena(#[from] InstallError),
}

/// See the module's text.
#[derive(Debug)]
pub struct Guest {
    /// Its memory.
    pub ram: GuestRam,
    /// The vCPU as it is before every hit, except for RIP: every general register points into the stack.
    pub vcpu: TestVcpu,
}

impl Guest {
    /// Loads a kernel and maps the stack by its page tables.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub fn new(image: &Image, symbols: &Symbols) -> Result<Self, GuestError> {
        let ram = GuestRam::new(RAM_MIB)?;
        for (at, bytes) in image.contents() {
            ram.write(at, bytes)?;
        }
        let map = image.map();
        let table = |name| {
            let found = map.to_phys(symbols.find(name)?.address);
            let (phys, _) = found.ok_or(GuestError::NotLoaded(name))?;
            Ok::<_, GuestError>(phys.0)
        };
        let root = table("init_top_pgt")?;
        let put = |table: u64, index: u64, entry: u64| {
            ram.write(GuestPhysAddr(table + index * 8), &entry.to_le_bytes())
        };
        put(root, 511, table("level3_kernel_pgt")? | TABLE)?;
        let [upper, middle, lower] = [0, 1, 2].map(|index| TABLES + index * 0x1000);
        put(root, WINDOW >> 39 & 511, upper | TABLE)?;
        put(upper, WINDOW >> 30 & 511, middle | TABLE)?;
        put(middle, WINDOW >> 21 & 511, lower | TABLE)?;
        for (index, page) in (WINDOW_PHYS..WINDOW_PHYS + WINDOW_LEN)
            .step_by(0x1000)
            .enumerate()
        {
            put(lower, index as u64, page | TABLE | NO_EXECUTE)?;
        }
        Ok(Self {
            ram,
            vcpu: vcpu(root),
        })
    }

    /// Gives the engine its memory in the guest, empty.
    ///
    /// # Errors
    /// The kernel's page tables are not as expected.
    pub fn install_arena(&self, engine: &Engine) -> Result<(), GuestError> {
        Ok(engine.install_arena(self, self.ram.arena())?)
    }

    /// A word of the stack.
    ///
    /// # Errors
    /// It isn't one.
    pub fn stack_word(&self, at: u64) -> Result<u64, MemoryError> {
        self.ram.read_u64(stack_phys(at))
    }

    /// Writes a word of the stack.
    ///
    /// # Errors
    /// It isn't one.
    pub fn set_stack_word(&self, at: u64, word: u64) -> Result<(), MemoryError> {
        self.ram.write_u64(stack_phys(at), word)
    }
}

fn stack_phys(at: u64) -> GuestPhysAddr {
    GuestPhysAddr(at.wrapping_sub(WINDOW).wrapping_add(WINDOW_PHYS))
}

/// In the kernel: 64-bit mode, paging, write protection, privilege level 0.
fn vcpu(root: u64) -> TestVcpu {
    let at = STACK;
    let registers = Registers {
        rax: at,
        rbx: at,
        rcx: at,
        rdx: at,
        rsi: at,
        rdi: at,
        rsp: at,
        rbp: at,
        r8: at,
        r9: at,
        r10: at,
        r11: at,
        r12: at,
        r13: at,
        r14: at,
        r15: at,
        rip: 0,
        rflags: 0x246,
    };
    let control = ControlRegisters {
        cr0: 0x8005_0033,
        cr3: root,
        cr4: 0x6f0,
        efer: 0xd01,
        gs_base: WINDOW,
        code64: true,
        ..ControlRegisters::default()
    };
    TestVcpu {
        id: VcpuId(0),
        registers,
        control,
        ..TestVcpu::default()
    }
}

impl StoppedGuest for Guest {
    fn memory(&self) -> &dyn GuestMemory {
        &self.ram
    }

    fn ram(&self) -> Vec<PhysRange> {
        self.ram.ranges()
    }

    fn has_gigabyte_pages(&self) -> bool {
        false
    }

    fn vcpus(&self) -> u32 {
        1
    }

    fn registers(&self, _: VcpuId) -> Result<Registers, VcpuError> {
        Ok(self.vcpu.registers)
    }

    fn set_registers(&self, _: VcpuId, _: &Registers) -> Result<(), VcpuError> {
        Ok(())
    }

    fn control(&self, _: VcpuId) -> Result<ControlRegisters, VcpuError> {
        Ok(self.vcpu.control)
    }

    fn set_debugging(&self, _: &Debugging) -> Result<(), DebuggingError> {
        Ok(())
    }
}
