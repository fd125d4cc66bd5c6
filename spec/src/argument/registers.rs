//! Registers by the kernel's names (`regoffset_table` in `arch/x86/kernel/ptrace.c`).

use super::Fetch;
use super::error::Reason;

/// General registers, in the order of their numbers in instruction encodings (Intel SDM vol. 2,
/// table 2-4).
const GENERAL: [&str; 16] = [
    "ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

/// Members of the kernel's `pt_regs` that a probe has no use for.
const CONSTANT: [&str; 3] = ["cs", "ss", "orig_ax"];

/// Returns the register of a name.
pub fn fetch(name: &str) -> Result<Fetch, Reason> {
    match name {
        "ip" => return Ok(Fetch::InstructionPointer),
        "flags" => return Ok(Fetch::Flags),
        _ => {}
    }
    if let Some(constant) = CONSTANT.iter().find(|known| **known == name) {
        return Err(Reason::ConstantRegister(constant));
    }
    (0..)
        .zip(GENERAL)
        .find(|(_, known)| *known == name)
        .map(|(number, _)| Fetch::Register(number))
        .ok_or(Reason::BadRegister)
}

/// Returns the name of a general register; `?` for a number that none has.
pub fn name(number: u8) -> &'static str {
    GENERAL.get(usize::from(number)).unwrap_or(&"?")
}
