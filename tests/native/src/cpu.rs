//! Executing one instruction on the CPU that this runs on.

use std::io;
use std::ops::Range;
use std::ptr;

use guest_state::Registers;

use crate::case::Case;
use crate::registers::in_encoding_order;
use crate::signals::{Exit, SignalStack, set_exit};
use crate::stub::{
    CODE, CONTROL, COPY, DATA, ENTRY, FLAGS, LANDED, LANDING, PAGE, ROOM, SIGNAL, SLOTS, SPOT,
    Stub, VECTORS, image,
};

/// Bytes of memory that an instruction may touch.
pub const DATA_LEN: usize = 8192;
/// Length of the vector registers' images: XMM0 to XMM15, and the upper halves of YMM0 to YMM15.
pub const VECTORS_LEN: usize = 512;
/// Where those are in an XSAVE area (SDM vol. 1, 10.5.1 and 13.4.2).
const XMM: Range<usize> = 160..416;
const YMM: Range<usize> = 576..832;
/// Bits of the states that a case sets at its beginning; all others are as after a reset.
const STATES_AT: usize = 512;
const X87_SSE: u8 = 3;
const AVX: u8 = 4;
/// FPU registers and MXCSR.
const REST: Range<usize> = 24..160;
/// The vector of page faults.
const PAGE_FAULT: u64 = 14;
/// Room for a relocated copy.
const COPY_ROOM: usize = 256;

/// The addresses of a case. All are below 2 GiB, so that every form of address reaches them.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Address of the instruction.
    pub code: u64,
    /// Where a relocated copy may go, within 2 GiB.
    pub copy: u64,
    /// The same, but farther away than any displacement reaches.
    pub far: u64,
    /// Where taken branches have to go. Branches that aren't taken fall through.
    pub landing: u64,
    /// Address of the memory, [`DATA_LEN`] bytes.
    pub data: u64,
}

/// A fault as Linux reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The exception's vector.
    pub vector: u64,
    /// CR2 and the error code of a page fault, else 0.
    pub page_fault: (u64, u64),
}

/// The state after an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// RIP is at the landing if a branch was taken, else behind the instruction; after a fault it is at the faulting
    /// instruction.
    pub registers: Registers,
    /// The memory.
    pub data: Vec<u8>,
    /// XMM0 to XMM15, and the upper halves of YMM0 to YMM15.
    pub vectors: Vec<u8>,
    /// MXCSR and the FPU's registers.
    pub fpu: Vec<u8>,
    /// The fault that ended it, if one did.
    pub fault: Option<Fault>,
}

/// Pages of code, a page to control it, and the data with a page that can't be touched on either
/// side.
pub struct Cpu {
    base: *mut u8,
    /// A page of code far away from the others.
    far: *mut u8,
    leave: usize,
    /// The base that this CPU has set last; `None` before the first time.
    gs_base: Option<u64>,
    _stack: SignalStack,
}

const LEN: usize = DATA + DATA_LEN + PAGE;

impl Cpu {
    /// Maps the pages.
    ///
    /// # Errors
    /// The system has no memory left for them, or doesn't let code be executed.
    pub fn new() -> io::Result<Self> {
        if !is_x86_feature_detected!("xsave") {
            // The stub would fault again and again.
            let reason = "the CPU has no XSAVE, by which vector registers are compared";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        let base = map(LEN, libc::MAP_32BIT)?;
        let stub = Stub::new();
        let mut cpu = Self {
            base,
            far: map(PAGE, 0)?,
            leave: stub.leave,
            gs_base: None,
            _stack: SignalStack::new()?,
        };
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let execute = write | libc::PROT_EXEC;
        protect(cpu.base.wrapping_add(CODE), CONTROL, execute)?;
        protect(cpu.base.wrapping_add(CONTROL), 4 * PAGE, write)?;
        protect(cpu.base.wrapping_add(DATA), DATA_LEN, write)?;
        protect(cpu.far, PAGE, execute)?;
        cpu.put(CODE, &stub.bytes);
        Ok(cpu)
    }

    /// Where a case runs.
    pub fn layout(&self) -> Layout {
        let base = self.base as u64;
        Layout {
            code: base + SPOT as u64,
            copy: base + COPY as u64,
            far: self.far as u64,
            landing: base + LANDING as u64,
            data: base + DATA as u64,
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes(at, bytes.len()).copy_from_slice(bytes);
    }

    /// A part of the mapping that is readable and writable: all but the pages around the data.
    fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= VECTORS + 3 * PAGE || at >= DATA && at + len <= DATA + DATA_LEN);
        let start = self.base.wrapping_add(at);
        // SAFETY: inside the mapping, and always readable and writable, as was just asserted; the
        // borrow of `self` keeps anything else away from it.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Executes a case's instruction at its own address.
    ///
    /// # Errors
    /// The system doesn't let the GS base be set.
    pub fn execute(&mut self, case: &Case) -> io::Result<State> {
        let entry = self.layout().code;
        self.run(case, &case.code, entry)
    }

    /// Executes other code in the place of a case's instruction. The code is made for `at`, [`Layout::copy`] or
    /// [`Layout::far`], and ends by jumping behind the instruction, whose own place is empty.
    ///
    /// # Errors
    /// As for [`Cpu::execute`].
    pub fn execute_copy(&mut self, case: &Case, copy: &[u8], at: u64) -> io::Result<State> {
        let mut room = [0xcc; COPY_ROOM];
        room[..copy.len()].copy_from_slice(copy);
        if at == self.layout().far {
            // SAFETY: the page is readable and writable, and this is the only way to it.
            unsafe { std::slice::from_raw_parts_mut(self.far, COPY_ROOM) }.copy_from_slice(&room);
        } else {
            self.put(COPY, &room);
        }
        self.run(case, &vec![0xcc; case.code.len()], at)
    }

    /// Executes a case with other bytes, up to 16, in the place of its instruction, and with code at [`Layout::copy`]
    /// to which they lead, at `entry`.
    ///
    /// # Errors
    /// As for [`Cpu::execute`].
    pub fn execute_patched(
        &mut self,
        case: &Case,
        patched: &[u8],
        detour: &[u8],
        entry: u64,
    ) -> io::Result<State> {
        let mut room = [0xcc; PAGE];
        room[..detour.len()].copy_from_slice(detour);
        self.put(COPY, &room);
        self.run(case, patched, entry)
    }

    fn run(&mut self, case: &Case, spot: &[u8], entry: u64) -> io::Result<State> {
        self.set_gs_base(case.gs_base)?;
        // Only `nop`s follow the instruction.
        let mut room = [0x90; ROOM];
        room[..spot.len()].copy_from_slice(spot);
        self.put(SPOT, &room);
        self.put(DATA, &case.data);
        let mut vectors = [0; PAGE];
        // The control words as a process has them at its start (System V ABI, 3.4.1).
        vectors[..2].copy_from_slice(&0x37f_u16.to_le_bytes());
        vectors[24..28].copy_from_slice(&0x1f80_u32.to_le_bytes());
        let (xmm, ymm) = case.vectors.split_at(XMM.len());
        vectors[XMM].copy_from_slice(xmm);
        vectors[STATES_AT] = X87_SSE;
        if is_x86_feature_detected!("avx") {
            vectors[YMM].copy_from_slice(ymm);
            vectors[STATES_AT] |= AVX;
        }
        self.put(image(1), &vectors);
        let mut slots = [0; SLOTS];
        slots[..16].copy_from_slice(&in_encoding_order(&case.registers));
        slots[FLAGS] = case.registers.rflags;
        slots[ENTRY] = entry;
        let bytes: Vec<u8> = slots
            .iter()
            .flat_map(|slot: &u64| slot.to_le_bytes())
            .collect();
        self.put(CONTROL, &bytes);

        set_exit(Some(Exit {
            slots: self.base.wrapping_add(CONTROL).cast(),
            leave: self.base as u64 + self.leave as u64,
        }));
        // SAFETY: the page holds a complete function of that type (see `stub`), executable.
        let run: extern "C" fn() = unsafe { std::mem::transmute(self.base) };
        run();
        set_exit(None);

        let bytes = self.bytes(CONTROL, bytes.len());
        for (slot, bytes) in slots.iter_mut().zip(bytes.chunks_exact(8)) {
            *slot = bytes
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte));
        }
        let mut general = [0; 16];
        general.copy_from_slice(&slots[..16]);
        let mut registers = Registers::numbered(general);
        registers.rflags = slots[FLAGS];
        let [signal, at, address, error_code, vector] = [0, 1, 2, 3, 4].map(|i| slots[SIGNAL + i]);
        let layout = self.layout();
        let fault = (signal != 0).then(|| {
            // For other exceptions, Linux leaves the values of an older page fault there.
            let page_fault = if vector == PAGE_FAULT {
                (address, error_code)
            } else {
                (0, 0)
            };
            Fault { vector, page_fault }
        });
        registers.rip = match (fault, slots[LANDED]) {
            (Some(_), _) => at,
            (None, 1) => layout.landing,
            (None, _) => layout.code + case.code.len() as u64,
        };
        let after = self.bytes(image(2), PAGE);
        let vectors = [&after[XMM], &after[YMM]].concat();
        let fpu = after[REST].to_vec();
        Ok(State {
            registers,
            vectors,
            fpu,
            data: self.bytes(DATA, DATA_LEN).to_vec(),
            fault,
        })
    }

    fn set_gs_base(&mut self, base: u64) -> io::Result<()> {
        const ARCH_SET_GS: libc::c_long = 0x1001;
        if self.gs_base == Some(base) {
            return Ok(());
        }
        // SAFETY: neither Rust nor the C library use GS on x86-64.
        let status = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        self.gs_base = Some(base);
        Ok(())
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and `self` was the last to refer to it.
        let _status = unsafe { libc::munmap(self.base.cast(), LEN) };
        // SAFETY: as above.
        let _status = unsafe { libc::munmap(self.far.cast(), PAGE) };
    }
}

/// New memory that can't be touched yet.
fn map(len: usize, flags: libc::c_int) -> io::Result<*mut u8> {
    // SAFETY: a new mapping at an address of the system's choice touches nothing.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(base.cast())
}

/// Sets the access to a part of such memory.
fn protect(start: *mut u8, len: usize, access: libc::c_int) -> io::Result<()> {
    // SAFETY: the range is inside a mapping of ours, which nothing else refers to.
    let status = unsafe { libc::mprotect(start.cast(), len, access) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
