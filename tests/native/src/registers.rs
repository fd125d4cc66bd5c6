//! General registers by their decoded names.

use guest_state::Registers;
use iced_x86::Register;

/// Returns the field of the whole general register of which `register` may be a part.
pub fn field(registers: &mut Registers, register: Register) -> Option<&mut u64> {
    Some(match register.full_register() {
        Register::RAX => &mut registers.rax,
        Register::RBX => &mut registers.rbx,
        Register::RCX => &mut registers.rcx,
        Register::RDX => &mut registers.rdx,
        Register::RSI => &mut registers.rsi,
        Register::RDI => &mut registers.rdi,
        Register::RSP => &mut registers.rsp,
        Register::RBP => &mut registers.rbp,
        Register::R8 => &mut registers.r8,
        Register::R9 => &mut registers.r9,
        Register::R10 => &mut registers.r10,
        Register::R11 => &mut registers.r11,
        Register::R12 => &mut registers.r12,
        Register::R13 => &mut registers.r13,
        Register::R14 => &mut registers.r14,
        Register::R15 => &mut registers.r15,
        _ => return None,
    })
}

/// The value of a whole general register.
pub fn get(registers: &Registers, register: Register) -> Option<u64> {
    field(&mut registers.clone(), register).map(|field| *field)
}

/// Sets a whole general register; `None` if it isn't one.
pub fn set(registers: &mut Registers, register: Register, value: u64) -> Option<()> {
    *field(registers, register)? = value;
    Some(())
}

/// Returns RAX, RCX, RDX, ..., in the order in which instructions number them.
pub fn in_encoding_order(r: &Registers) -> [u64; 16] {
    [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ]
}
