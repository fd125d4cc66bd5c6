//! Executing one instruction on the CPU that this runs on.

use std::io;
use std::ptr;

use probe_engine::vcpu::Registers;

use super::case::{Case, DATA, Layout};

const PAGE: usize = 4096;

/// Slots of the control page, in units of eight bytes.
const REGISTERS: usize = 0;
const FLAGS: usize = 16;
const LANDED: usize = 17;
const HOST_STACK: usize = 18;

/// Length of what a branch that isn't taken executes, and jumps over.
const FALL_THROUGH: u64 = 13;
/// Where the instruction is in the code page, and how much room it has.
const SPOT: usize = 256;
const ROOM: usize = 16;

/// A page of code, a page to control it, and the data with a page that can't be
/// touched on either side.
pub struct Cpu {
    base: *mut u8,
}

impl Cpu {
    const CONTROL: usize = PAGE;
    const DATA: usize = 3 * PAGE;
    const LEN: usize = Self::DATA + DATA + PAGE;

    /// Maps the pages.
    ///
    /// # Errors
    /// The system has no memory left for them.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the system's choice touches nothing.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                Self::LEN,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let cpu = Self { base: base.cast() };
        cpu.protect(Self::CONTROL, PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
        cpu.protect(Self::DATA, DATA, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(cpu)
    }

    /// Where a case runs.
    pub fn layout(&self) -> Layout {
        let base = self.base as u64;
        Layout {
            code: base + SPOT as u64,
            landing: ROOM as u64 + FALL_THROUGH,
            data: base + Self::DATA as u64,
        }
    }

    fn protect(&self, at: usize, len: usize, access: libc::c_int) -> io::Result<()> {
        let start = self.base.wrapping_add(at);
        // SAFETY: the range is inside the mapping, which nothing else refers to.
        let status = unsafe { libc::mprotect(start.cast(), len, access) };
        if status == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// The bytes from `at` on.
    ///
    /// # Safety
    /// They are inside the mapping, which for now allows what the caller does with
    /// them.
    unsafe fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        let start = self.base.wrapping_add(at);
        // SAFETY: inside the mapping; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Executes a case. RIP becomes the landing's address where a branch was
    /// taken, else that of the following instruction.
    ///
    /// # Errors
    /// The system doesn't let the code be executed.
    pub fn execute(&mut self, case: &Case) -> io::Result<(Registers, Vec<u8>)> {
        self.protect(0, PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: the page was just made writable; the slice ends with the statement.
        unsafe { self.bytes(0, PAGE) }.copy_from_slice(&stub(&case.code));
        self.protect(0, PAGE, libc::PROT_READ | libc::PROT_EXEC)?;
        // SAFETY: the data is always writable; the slice ends with the statement.
        unsafe { self.bytes(Self::DATA, DATA) }.copy_from_slice(&case.data);

        let mut slots = [0; 20];
        slots[..16].copy_from_slice(&in_encoding_order(&case.registers));
        slots[FLAGS] = case.registers.rflags;
        let bytes: Vec<u8> = slots
            .iter()
            .flat_map(|slot: &u64| slot.to_le_bytes())
            .collect();
        // SAFETY: the control page is always writable; the slice ends with the statement.
        unsafe { self.bytes(Self::CONTROL, bytes.len()) }.copy_from_slice(&bytes);

        // SAFETY: the page holds a complete function of that type (see `stub`), executable now.
        let run: extern "C" fn() = unsafe { std::mem::transmute(self.base) };
        run();

        // SAFETY: as above, and `run` has returned.
        let bytes = unsafe { self.bytes(Self::CONTROL, bytes.len()) };
        for (slot, bytes) in slots.iter_mut().zip(bytes.chunks_exact(8)) {
            *slot = bytes
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte));
        }
        let mut registers = from_encoding_order(&slots[..16]);
        registers.rflags = slots[FLAGS];
        let layout = self.layout();
        let by = if slots[LANDED] == 1 {
            layout.landing
        } else {
            case.code.len() as u64
        };
        registers.rip = layout.code + by;
        // SAFETY: as above.
        let data = unsafe { self.bytes(Self::DATA, DATA) }.to_vec();
        Ok((registers, data))
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and `self` was the last to refer to it.
        let _status = unsafe { libc::munmap(self.base.cast(), Self::LEN) };
    }
}

/// A function that keeps the registers its caller needs, loads all from the
/// control page, executes the instruction, and stores all.
fn stub(insn: &[u8]) -> [u8; PAGE] {
    let mut code = Code {
        bytes: [0xcc; PAGE],
        at: 0,
    };
    // push rbx, rbp, r12 to r15; pushf
    code.put(&[
        0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x9c,
    ]);
    code.store(4, HOST_STACK);
    // push flags; popf
    code.put(&[0xff, 0x35]);
    code.slot(FLAGS, 0);
    code.put(&[0x9d]);
    for register in (0..16).filter(|register| *register != 4).chain([4]) {
        code.load(register, REGISTERS + usize::from(register));
    }
    // Nothing but `nop`s to the instruction, and between it and what follows.
    code.pad(SPOT);
    code.put(insn);
    code.pad(SPOT + ROOM);
    // mov qword [LANDED], 0; jmp over the landing
    code.mark_landed(0);
    code.put(&[0xeb, 11]);
    debug_assert_eq!(code.at, SPOT + ROOM + FALL_THROUGH as usize);
    code.mark_landed(1);
    for register in 0..16 {
        code.store(register, REGISTERS + usize::from(register));
    }
    code.load(4, HOST_STACK);
    // pushf; pop flags
    code.put(&[0x9c, 0x8f, 0x05]);
    code.slot(FLAGS, 0);
    // popf; pop r15 to r12, rbp, rbx; ret
    code.put(&[
        0x9d, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3,
    ]);
    code.bytes
}

struct Code {
    bytes: [u8; PAGE],
    at: usize,
}

impl Code {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn pad(&mut self, to: usize) {
        self.bytes[self.at..to].fill(0x90);
        self.at = to;
    }

    /// The RIP-relative displacement of a slot, in an instruction that has so
    /// many bytes after it.
    fn slot(&mut self, slot: usize, after: usize) {
        let by = (Cpu::CONTROL + slot * 8 - (self.at + 4 + after)) as u32;
        self.put(&by.to_le_bytes());
    }

    fn load(&mut self, register: u8, slot: usize) {
        self.put(&[
            0x48 | (register >> 3) << 2,
            0x8b,
            0x05 | (register & 7) << 3,
        ]);
        self.slot(slot, 0);
    }

    fn store(&mut self, register: u8, slot: usize) {
        self.put(&[
            0x48 | (register >> 3) << 2,
            0x89,
            0x05 | (register & 7) << 3,
        ]);
        self.slot(slot, 0);
    }

    fn mark_landed(&mut self, value: u8) {
        self.put(&[0x48, 0xc7, 0x05]);
        self.slot(LANDED, 4);
        self.put(&[value, 0, 0, 0]);
    }
}

fn in_encoding_order(r: &Registers) -> [u64; 16] {
    [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ]
}

fn from_encoding_order(slots: &[u64]) -> Registers {
    Registers {
        rax: slots[0],
        rcx: slots[1],
        rdx: slots[2],
        rbx: slots[3],
        rsp: slots[4],
        rbp: slots[5],
        rsi: slots[6],
        rdi: slots[7],
        r8: slots[8],
        r9: slots[9],
        r10: slots[10],
        r11: slots[11],
        r12: slots[12],
        r13: slots[13],
        r14: slots[14],
        r15: slots[15],
        ..Registers::default()
    }
}
