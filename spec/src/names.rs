//! The names of registers, and of the other values that a condition compares.

use vmprobe_proto::v1::condition::Operand;
use vmprobe_proto::v1::{Register, RegisterPart, Variable};

/// General registers in the order of [`Register`], which is that of their numbers in instruction
/// encodings (Intel SDM vol. 2, table 2-4), each by its names of 8, 4, 2 and 1 bytes.
const GENERAL: [[&str; 4]; 16] = [
    ["rax", "eax", "ax", "al"],
    ["rcx", "ecx", "cx", "cl"],
    ["rdx", "edx", "dx", "dl"],
    ["rbx", "ebx", "bx", "bl"],
    ["rsp", "esp", "sp", "spl"],
    ["rbp", "ebp", "bp", "bpl"],
    ["rsi", "esi", "si", "sil"],
    ["rdi", "edi", "di", "dil"],
    ["r8", "r8d", "r8w", "r8b"],
    ["r9", "r9d", "r9w", "r9b"],
    ["r10", "r10d", "r10w", "r10b"],
    ["r11", "r11d", "r11w", "r11b"],
    ["r12", "r12d", "r12w", "r12b"],
    ["r13", "r13d", "r13w", "r13b"],
    ["r14", "r14d", "r14w", "r14b"],
    ["r15", "r15d", "r15w", "r15b"],
];
const SIZES: [u32; 4] = [8, 4, 2, 1];

/// RFLAGS among the registers that an event can have.
const FLAGS: &str = "rflags";

/// RIP, which only actions name.
const INSTRUCTION_POINTER: &str = "rip";

/// Values that are no registers.
const VARIABLES: [(&str, Variable); 3] = [
    ("cpu", Variable::Cpu),
    ("pid", Variable::Pid),
    ("tgid", Variable::Tgid),
];

/// Returns the number of a register: that of its encoding, 16 for RFLAGS, and 17 for RIP.
pub fn number(register: Register) -> Option<u8> {
    u8::try_from(i32::from(register) - 1).ok()
}

/// Returns the register of a [`number`].
pub fn numbered(number: u8) -> Option<Register> {
    let register = Register::try_from(i32::from(number) + 1).ok()?;
    (register != Register::Unspecified).then_some(register)
}

/// Returns the general register, or part of one, that has this name.
pub fn part(name: &str) -> Option<RegisterPart> {
    (0..).zip(GENERAL).find_map(|(number, names)| {
        let width = names.iter().position(|known| *known == name)?;
        Some(RegisterPart {
            register: numbered(number)?.into(),
            bytes: SIZES[width],
        })
    })
}

/// Returns the name of a part of a general register.
pub fn part_name(part: &RegisterPart) -> Option<&'static str> {
    let number = number(Register::try_from(part.register).ok()?)?;
    let width = SIZES.iter().position(|size| *size == part_size(part))?;
    Some(GENERAL.get(usize::from(number))?[width])
}

fn part_size(part: &RegisterPart) -> u32 {
    match part.bytes {
        0 => 8,
        bytes => bytes,
    }
}

/// Returns the whole register of this name, such as an event has.
pub fn register(name: &str) -> Option<Register> {
    match part(name) {
        Some(part) if part.bytes == 8 => Some(part.register()),
        _ => (name == FLAGS).then_some(Register::Rflags),
    }
}

/// Returns the name of a whole register.
pub fn register_name(register: Register) -> Option<&'static str> {
    match register {
        Register::Rflags => Some(FLAGS),
        _ => Some(GENERAL.get(usize::from(number(register)?))?[0]),
    }
}

/// Returns the register of this name that an action can set: a whole general register, `rflags` or `rip`.
pub fn settable(name: &str) -> Option<Register> {
    register(name).or_else(|| (name == INSTRUCTION_POINTER).then_some(Register::Rip))
}

/// Returns the name by which [`settable`] finds a register.
pub fn settable_name(register: Register) -> Option<&'static str> {
    match register {
        Register::Rip => Some(INSTRUCTION_POINTER),
        other => register_name(other),
    }
}

/// Returns what a condition compares, by its name: a register of any width, `cpu`, `pid` or `tgid`.
pub fn operand(name: &str) -> Option<Operand> {
    let variable = VARIABLES.iter().find(|(known, _)| *known == name);
    match variable {
        Some((_, variable)) => Some(Operand::Variable((*variable).into())),
        None => part(name).map(Operand::Register),
    }
}

/// Returns the name of what a condition compares.
pub fn operand_name(operand: &Operand) -> Option<&'static str> {
    match operand {
        Operand::Register(part) => part_name(part),
        Operand::Variable(wanted) => VARIABLES
            .iter()
            .find(|(_, variable)| i32::from(*variable) == *wanted)
            .map(|(name, _)| *name),
    }
}

/// Returns the size in bytes of what a condition compares.
pub fn operand_size(operand: &Operand) -> u32 {
    match operand {
        Operand::Register(part) => part_size(part),
        Operand::Variable(_) => 4,
    }
}

/// Returns true if a value of `size` bytes can be this constant: as it is, or as a negative number with all
/// its upper bits set.
pub fn fits(constant: u64, size: u32) -> bool {
    let bits = 8 * size.clamp(1, 8);
    let negative = constant.cast_signed() >> (bits - 1) == -1;
    negative || constant.checked_shr(bits).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_for_one_register_and_width() {
        for number in 0..16 {
            for bytes in SIZES {
                let register = numbered(number).unwrap().into();
                let wanted = RegisterPart { register, bytes };
                let name = part_name(&wanted).unwrap();
                assert_eq!(part(name), Some(wanted), "{name}");
                assert_eq!(operand_name(&operand(name).unwrap()), Some(name));
            }
        }
        for name in ["", "ah", "rip", "r16", "R8", "rflags", "cpu"] {
            assert_eq!(part(name), None, "{name}");
        }
        for (register, bytes) in [
            (Register::Rflags, 8),
            (Register::Rax, 3),
            (Register::Unspecified, 8),
        ] {
            let register = register.into();
            assert_eq!(part_name(&RegisterPart { register, bytes }), None);
        }
    }

    #[test]
    fn the_numbers_of_registers_are_those_of_their_encodings() {
        let table = [
            (Register::Rax, 0),
            (Register::Rsp, 4),
            (Register::Rdi, 7),
            (Register::R15, 15),
            (Register::Rflags, 16),
            (Register::Rip, 17),
        ];
        for (register, expected) in table {
            assert_eq!(number(register), Some(expected));
            assert_eq!(numbered(expected), Some(register));
        }
        assert_eq!(number(Register::Unspecified), None);
        assert_eq!(numbered(18), None);
    }

    #[test]
    fn a_register_without_a_width_is_whole() {
        let register = Register::Rdi.into();
        let whole = RegisterPart { register, bytes: 0 };
        assert_eq!(part_name(&whole), Some("rdi"));
        assert_eq!(operand_size(&Operand::Register(whole)), 8);
    }

    #[test]
    fn an_action_sets_whole_registers_and_rip() {
        for number in 0..=17 {
            let whole = numbered(number).unwrap();
            assert_eq!(settable(settable_name(whole).unwrap()), Some(whole));
        }
        assert_eq!([settable("eax"), settable("cr3")], [None, None]);
        assert_eq!(register("rip"), None, "every event has it");
    }

    #[test]
    fn an_event_has_whole_registers_only() {
        for number in 0..=16 {
            let whole = numbered(number).unwrap();
            let name = register_name(whole).unwrap();
            assert_eq!(register(name), Some(whole));
        }
        assert_eq!(register("edi"), None);
        assert_eq!(register_name(Register::Unspecified), None);
    }

    #[test]
    fn a_constant_fits_with_or_without_its_sign() {
        for (constant, size, fit) in [
            (0xff, 1, true),
            (0x100, 1, false),
            (-0x80_i64 as u64, 1, true),
            (-0x81_i64 as u64, 1, false),
            (0xffff_ffff, 4, true),
            (0x1_0000_0000, 4, false),
            (u64::MAX, 8, true),
            (1 << 63, 8, true),
            (0xffff_ffff_7fff_ffff, 4, false),
        ] {
            assert_eq!(fits(constant, size), fit, "{constant:#x} {size}");
        }
    }
}
