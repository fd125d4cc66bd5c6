//! General registers.

/// The general registers, the instruction pointer and the flags, in the order of KVM's `struct kvm_regs`
/// (`arch/x86/include/uapi/asm/kvm.h`).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "each field is the register of that name")]
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

impl Registers {
    /// General registers in the order of their numbers in instruction encodings; RIP and the flags are 0.
    ///
    /// Source: Intel SDM vol. 2, table 2-4.
    pub fn numbered(values: [u64; 16]) -> Self {
        let [
            rax,
            rcx,
            rdx,
            rbx,
            rsp,
            rbp,
            rsi,
            rdi,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
        ] = values;
        Self {
            rax,
            rbx,
            rcx,
            rdx,
            rsi,
            rdi,
            rsp,
            rbp,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            ..Self::default()
        }
    }

    /// The register that instruction encodings call `number` (0 is RAX, 4 is RSP, 15 is R15; only the low
    /// four bits count).
    ///
    /// Source: Intel SDM vol. 2, table 2-4.
    pub fn by_number(&self, number: u8) -> u64 {
        let mut copy = *self;
        *copy.by_number_mut(number)
    }

    /// The same register, to write.
    pub fn by_number_mut(&mut self, number: u8) -> &mut u64 {
        match number & 15 {
            0 => &mut self.rax,
            1 => &mut self.rcx,
            2 => &mut self.rdx,
            3 => &mut self.rbx,
            4 => &mut self.rsp,
            5 => &mut self.rbp,
            6 => &mut self.rsi,
            7 => &mut self.rdi,
            8 => &mut self.r8,
            9 => &mut self.r9,
            10 => &mut self.r10,
            11 => &mut self.r11,
            12 => &mut self.r12,
            13 => &mut self.r13,
            14 => &mut self.r14,
            _ => &mut self.r15,
        }
    }
}
