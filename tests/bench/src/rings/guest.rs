//! Jump probes that are hit in this process: rings and blocks in memory that a guest could have, and a
//! function with a detour that writes into them.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::{io, mem, ptr};

use guest_kernel::percpu::Variables;
use guest_state::{GuestMemory, GuestPhysAddr, GuestVirtAddr, MemoryError};
use probe_engine::detour::{self, Dead, DetourError, Environment, JUMP_LEN, Purpose, Region, Tag};
use probe_engine::probe::Capture;
use probe_engine::ring::layout::{CELLS, RING_LEN};
use probe_engine::ring::{Rings, VcpuMemory};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// The most vCPUs.
pub const VCPUS: usize = 2;
/// The detour's number.
pub const NUMBER: u32 = 1;
/// Its counter of lost records.
pub const CELL: u32 = 3;

const PAGE: usize = 4096;
/// A vCPU's block, with the "variables" of its "CPU" behind the counters.
const BLOCK_LEN: usize = 2 * PAGE;
const COUNTERS: u32 = (PAGE as u32 - CELLS as u32) / 4;
/// The offset from GS base of a CPU's current task.
const CURRENT_TASK: i32 = PAGE as i32;
/// Where the rings are in physical memory.
const RINGS_AT: usize = 1 << 20;
const MEMORY_LEN: usize = RINGS_AT + VCPUS * RING_LEN as usize;
/// The offset of the detour from the function.
const DETOUR: usize = PAGE;
/// `nopl 0(%rax,%rax)`; `ret`
const FUNCTION: [u8; 6] = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];
/// `arch_prctl`'s code for setting GS base (`arch/x86/include/uapi/asm/prctl.h`).
const ARCH_SET_GS: libc::c_ulong = 0x1001;

/// Why records can't be written here.
#[derive(Debug, thiserror::Error)]
pub enum RingsError {
    /// There is no memory for it.
    #[error("can't {0}")]
    System(&'static str, #[source] io::Error),
    /// It can't be seen as a guest's.
    #[error("can't map the guest's memory: {0}")]
    Map(String),
    /// It isn't where it should be.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The detour can't be generated.
    #[error(transparent)]
    Detour(#[from] DetourError),
    /// A record isn't what it has to be.
    #[error("vCPU {vcpu}'s record {found} came after {after}")]
    OutOfOrder {
        /// Whose.
        vcpu: u32,
        /// Its number.
        found: u64,
        /// The last one before.
        after: u64,
    },
    /// Records are neither here nor counted as lost.
    #[error("of {hits} hits there are {arrived} records and {lost} lost ones")]
    Vanished {
        /// Calls of the function.
        hits: u64,
        /// Records that were read.
        arrived: u64,
        /// What the detour has counted as lost.
        lost: u64,
    },
    /// A thread ended otherwise than it should.
    #[error("a producer's thread has failed")]
    Thread,
}

/// Memory that the monitor's crate maps, and that this process has mapped for itself, too.
#[derive(Debug)]
pub struct Ram(GuestMemoryMmap);

impl GuestMemory for Ram {
    fn read(&self, at: GuestPhysAddr, into: &mut [u8]) -> Result<(), MemoryError> {
        let len = into.len();
        let result = self.0.read_slice(into, GuestAddress(at.0));
        result.map_err(|_| MemoryError { at, len })
    }

    fn write(&self, at: GuestPhysAddr, from: &[u8]) -> Result<(), MemoryError> {
        let len = from.len();
        if !self.0.check_range(GuestAddress(at.0), len) {
            return Err(MemoryError { at, len });
        }
        let result = self.0.write_slice(from, GuestAddress(at.0));
        result.map_err(|_| MemoryError { at, len })
    }
}

/// The memory, the rings and the function.
#[derive(Debug)]
pub struct Guest {
    /// Its memory as the host sees it.
    pub ram: Ram,
    /// Blocks, and behind them the rings, each twice.
    data: Mapping,
    code: Mapping,
}

impl Guest {
    /// Sets it up: a jump probe with all registers on an otherwise empty function, and empty rings.
    ///
    /// # Errors
    /// See [`RingsError`].
    pub fn new() -> Result<(Self, Rings), RingsError> {
        let file = memory_file()?;
        let ring_len = RING_LEN as usize;
        let mut data = Mapping::new(BLOCK_LEN * VCPUS + 2 * VCPUS * ring_len)?;
        data.map(0, BLOCK_LEN * VCPUS, &file, 0)?;
        for ring in 0..2 * VCPUS {
            let at = BLOCK_LEN * VCPUS + ring * ring_len;
            data.map(at, ring_len, &file, RINGS_AT + ring / 2 * ring_len)?;
        }
        let range = (GuestAddress(0), MEMORY_LEN, Some(FileOffset::new(file, 0)));
        let ram = GuestMemoryMmap::from_ranges_with_files([range]);
        let ram = Ram(ram.map_err(|error| RingsError::Map(error.to_string()))?);
        let places = (0..VCPUS as u64).map(|vcpu| VcpuMemory {
            block: GuestPhysAddr(vcpu * BLOCK_LEN as u64),
            ring: GuestPhysAddr(RINGS_AT as u64 + vcpu * RING_LEN),
        });
        let mut rings = Rings::new(places, COUNTERS);
        rings.init(&ram)?;
        let mut code = Mapping::new(2 * PAGE)?;
        code.fill_with_code(&probed(&code, &data)?)?;
        Ok((Self { ram, data, code }, rings))
    }

    /// Makes the calling thread a vCPU.
    ///
    /// # Errors
    /// The system doesn't let it.
    pub fn enter(&self, vcpu: usize) -> Result<Hits, RingsError> {
        let gs = self.data.at(vcpu * BLOCK_LEN);
        // SAFETY: x86-64 user code here doesn't use GS, which each thread has for itself.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, gs) };
        if result != 0 {
            return Err(RingsError::System(
                "set GS base",
                io::Error::last_os_error(),
            ));
        }
        let start = ptr::with_exposed_provenance::<()>(self.code.at(0));
        // SAFETY: this is code that keeps to the ABI: a jump to a detour that keeps all registers but
        // those that a called function may change, and returns.
        let function = unsafe { mem::transmute::<*const (), extern "C" fn(u64)>(start) };
        Ok(Hits(function))
    }
}

/// The probed function, for threads that [`Guest::enter`] has made vCPUs, as long as that guest exists.
#[derive(Debug, Clone, Copy)]
pub struct Hits(extern "C" fn(u64));

impl Hits {
    /// Calls the function; its record has this number in RDI.
    pub fn hit(self, number: u64) {
        (self.0)(number);
    }
}

/// The function with the jump, and the detour.
fn probed(code: &Mapping, data: &Mapping) -> Result<Vec<u8>, RingsError> {
    let (start, at) = (code.at(0) as u64, code.at(DETOUR) as u64);
    let environment = Environment {
        // Here, GS base is the block's own address.
        block: 0,
        rings: GuestVirtAddr(data.at(BLOCK_LEN * VCPUS) as u64),
        variables: Variables {
            current_task: Some(CURRENT_TASK),
            ..Variables::default()
        },
        following: None,
        pointers: None,
    };
    let region = Region {
        start: GuestVirtAddr(start),
        bytes: FUNCTION[..JUMP_LEN].to_vec(),
        starts: vec![0],
        end: JUMP_LEN as u8,
        beyond: vec![],
    };
    let purpose = Purpose {
        capture: Some(Capture::FULL),
        ..Purpose::default()
    };
    let tag = Tag {
        number: NUMBER,
        cell: CELL,
    };
    // At a function's entry: RAX, R10, R11 and the flags.
    let dead = Dead {
        registers: 1 << 0 | 1 << 10 | 1 << 11,
        flags: true,
    };
    let detour = detour::generate(
        &environment,
        &region,
        dead,
        &purpose,
        tag,
        GuestVirtAddr(at),
    )?;
    let mut bytes = vec![0xcc; DETOUR];
    bytes[..FUNCTION.len()].copy_from_slice(&FUNCTION);
    let jump = (DETOUR - JUMP_LEN) as i32;
    bytes[0] = 0xe9;
    bytes[1..JUMP_LEN].copy_from_slice(&jump.to_le_bytes());
    bytes.extend(detour.code);
    Ok(bytes)
}

/// Memory that can be mapped at several places.
fn memory_file() -> Result<File, RingsError> {
    // SAFETY: the name is a string that ends with 0.
    let fd = unsafe { libc::memfd_create(c"rings".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(RingsError::System(
            "create memory",
            io::Error::last_os_error(),
        ));
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    let sized = file.set_len(MEMORY_LEN as u64);
    sized.map_err(|error| RingsError::System("size the memory", error))?;
    Ok(file)
}

/// CPU time that this thread has had, in seconds.
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it is written to what was made for it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A range of this process' addresses.
#[derive(Debug)]
struct Mapping {
    start: usize,
    len: usize,
}

impl Mapping {
    /// Reserves addresses without memory behind them.
    fn new(len: usize) -> Result<Self, RingsError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which the system puts where nothing is.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(RingsError::System(
                "reserve addresses",
                io::Error::last_os_error(),
            ));
        }
        let start = at.expose_provenance();
        Ok(Self { start, len })
    }

    /// The address of an offset in it.
    fn at(&self, offset: usize) -> usize {
        assert!(offset <= self.len);
        self.start + offset
    }

    /// Maps a part of a file at an offset of it.
    fn map(&mut self, at: usize, len: usize, file: &File, from: usize) -> Result<(), RingsError> {
        let to = ptr::with_exposed_provenance_mut(self.at(at));
        assert!(at + len <= self.len);
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
        );
        // SAFETY: this replaces a part of our own mapping, and there is no reference into it.
        let mapped = unsafe {
            libc::mmap(
                to,
                len,
                access,
                flags,
                file.as_raw_fd(),
                from as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(RingsError::System(
                "map the memory",
                io::Error::last_os_error(),
            ));
        }
        Ok(())
    }

    /// Writes code there, which can be executed from then on.
    fn fill_with_code(&mut self, code: &[u8]) -> Result<(), RingsError> {
        assert!(code.len() <= self.len);
        let at = ptr::with_exposed_provenance_mut::<u8>(self.start);
        let allow = |access| {
            // SAFETY: it is our whole mapping, and there is no reference into it.
            match unsafe { libc::mprotect(at.cast(), self.len, access) } {
                0 => Ok(()),
                _ => Err(RingsError::System(
                    "protect code",
                    io::Error::last_os_error(),
                )),
            }
        };
        allow(libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: the mapping is that long, was just made writable, and there is no slice of it.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), at, code.len()) };
        allow(libc::PROT_READ | libc::PROT_EXEC)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let at = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the mapping is ours, and a thread that executes in it has the guest borrowed.
        unsafe { libc::munmap(at, self.len) };
    }
}
