//! The function around the code under test: it saves what its caller needs, loads the state from
//! the control page, executes the code, and stores the state.

/// Size of a page.
pub const PAGE: usize = 4096;

/// Pages, from the mapping's start: the function with the instruction in it.
pub const CODE: usize = 0;
/// Where a relocated copy goes.
pub const COPY: usize = PAGE;
/// Slots of eight bytes.
pub const CONTROL: usize = 2 * PAGE;
/// Three images of the vector and FPU registers, of a page: the caller's, before, after.
pub const VECTORS: usize = 3 * PAGE;
/// The memory that cases use, between pages that can't be touched.
pub const DATA: usize = 7 * PAGE;
/// The parts of the extended state that are loaded and stored: x87, SSE, AVX and AVX-512 (SDM vol.
/// 1, 13.1).
const STATES: u32 = 0xe7;

/// Slots of the control page; first the registers as instructions number them.
pub const FLAGS: usize = 16;
/// 1: a branch was taken; 0: the code behind the instruction was reached.
pub const LANDED: usize = 17;
/// The caller's stack.
pub const HOST_STACK: usize = 18;
/// The signal that a fault became, or 0; then RIP, the address, the error code
/// and the exception's vector.
pub const SIGNAL: usize = 19;
/// Address of the code to be executed.
pub const ENTRY: usize = 24;
/// How many slots there are.
pub const SLOTS: usize = 25;

/// Length of the code that runs if a branch isn't taken, and that jumps over the landing.
const FALL_THROUGH: usize = 13;
/// Where the instruction is in the code page, and how much room it has.
pub const SPOT: usize = 256;
pub const ROOM: usize = 16;
/// Where taken branches have to go.
pub const LANDING: usize = SPOT + ROOM + FALL_THROUGH;
/// The jump to the code to be executed, six bytes.
const ENTER: usize = SPOT - 6;

/// Where the image of this number is.
pub const fn image(number: usize) -> usize {
    VECTORS + number * PAGE
}

/// The code page, and the offset in it at which execution goes on after a fault.
pub struct Stub {
    /// The page.
    pub bytes: [u8; PAGE],
    /// Stores the vector registers and returns.
    pub leave: usize,
}

impl Stub {
    /// Makes the function, without code under test.
    pub fn new() -> Self {
        let mut code = Code {
            bytes: [0xcc; PAGE],
            at: CODE,
        };
        // push rbx, rbp, r12 to r15; pushf
        code.put(&[
            0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x9c,
        ]);
        code.store(4, HOST_STACK);
        code.vectors(4, 0);
        code.vectors(5, 1);
        // push flags; popf
        code.put(&[0xff, 0x35]);
        code.slot(FLAGS, 0);
        code.put(&[0x9d]);
        for register in (0..16).filter(|register| *register != 4).chain([4]) {
            code.load(register, usize::from(register));
        }
        code.pad(ENTER);
        // jmp [ENTRY]
        code.put(&[0xff, 0x25]);
        code.slot(ENTRY, 0);
        code.pad(SPOT + ROOM);
        // mov qword [LANDED], 0; jmp over the landing
        code.mark_landed(0);
        code.put(&[0xeb, 11]);
        debug_assert_eq!(code.at, LANDING);
        code.mark_landed(1);
        for register in 0..16 {
            code.store(register, usize::from(register));
        }
        code.load(4, HOST_STACK);
        // pushf; pop flags
        code.put(&[0x9c, 0x8f, 0x05]);
        code.slot(FLAGS, 0);
        let leave = code.at;
        code.load(4, HOST_STACK);
        code.vectors(4, 2);
        code.vectors(5, 0);
        // popf; pop r15 to r12, rbp, rbx; ret
        code.put(&[
            0x9d, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3,
        ]);
        Self {
            bytes: code.bytes,
            leave,
        }
    }
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
        debug_assert!(self.at <= to);
        self.bytes[self.at..to].fill(0x90);
        self.at = to;
    }

    /// Writes the RIP-relative displacement of a place in the mapping, in an instruction with
    /// `after` bytes behind it.
    fn relative(&mut self, to: usize, after: usize) {
        let by = (to - (self.at + 4 + after)) as u32;
        self.put(&by.to_le_bytes());
    }

    fn slot(&mut self, slot: usize, after: usize) {
        self.relative(CONTROL + slot * 8, after);
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

    /// `xsave64` (operation 4) or `xrstor64` (5) of an image; changes RAX and RDX.
    fn vectors(&mut self, operation: u8, number: usize) {
        // mov eax, STATES; xor edx, edx
        self.put(&[0xb8]);
        self.put(&STATES.to_le_bytes());
        self.put(&[0x31, 0xd2]);
        self.put(&[0x48, 0x0f, 0xae, 0x05 | operation << 3]);
        self.relative(image(number), 0);
    }

    fn mark_landed(&mut self, value: u8) {
        self.put(&[0x48, 0xc7, 0x05]);
        self.slot(LANDED, 4);
        self.put(&[value, 0, 0, 0]);
    }
}
