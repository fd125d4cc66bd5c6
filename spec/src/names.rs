//! The names of registers, and of the other values that a condition compares.

/// General registers in the order of their numbers in instruction encodings (Intel SDM vol. 2, table
/// 2-4), each by its names of 8, 4, 2 and 1 bytes.
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
const SIZES: [u8; 4] = [8, 4, 2, 1];

/// RFLAGS among the registers that an event can have.
const FLAGS: (&str, u8) = ("rflags", 16);

/// Values that are no registers; each has 4 bytes.
const OTHERS: [&str; 3] = ["cpu", "pid", "tgid"];

/// Number and bytes of the general register, or part of one, that has this name.
pub fn register(name: &str) -> Option<(u8, u8)> {
    (0..).zip(GENERAL).find_map(|(number, names)| {
        let width = names.iter().position(|known| *known == name)?;
        Some((number, SIZES[width]))
    })
}

/// The name of a general register's lowest 1, 2, 4 or 8 bytes.
pub fn register_name(number: u8, size: u8) -> Option<&'static str> {
    let width = SIZES.iter().position(|known| *known == size)?;
    Some(GENERAL.get(usize::from(number))?[width])
}

/// Number of a whole register, such as an event has; RFLAGS is 16.
pub fn whole_register(name: &str) -> Option<u8> {
    match register(name) {
        Some((number, 8)) => Some(number),
        _ => (name == FLAGS.0).then_some(FLAGS.1),
    }
}

/// The name of a whole register; that of 16 is `rflags`.
pub fn whole_register_name(number: u8) -> Option<&'static str> {
    match number {
        16 => Some(FLAGS.0),
        _ => register_name(number, 8),
    }
}

/// Bytes of what a condition can compare, by its name: a register, `cpu`, `pid` or `tgid`.
pub fn operand_size(name: &str) -> Option<u8> {
    match register(name) {
        Some((_, size)) => Some(size),
        None => OTHERS.contains(&name).then_some(4),
    }
}

/// Returns true if a value of `size` bytes can be this constant: as it is, or as a negative number with all
/// its upper bits set.
pub fn fits(constant: u64, size: u8) -> bool {
    let bits = 8 * u32::from(size.clamp(1, 8));
    let negative = constant.cast_signed() >> (bits - 1) == -1;
    negative || constant.checked_shr(bits).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_for_one_register_and_width() {
        for number in 0..16 {
            for size in SIZES {
                let name = register_name(number, size).unwrap();
                assert_eq!(register(name), Some((number, size)), "{name}");
            }
        }
        for name in ["", "ah", "rip", "r16", "R8", "rflags", "cpu"] {
            assert_eq!(register(name), None, "{name}");
        }
        assert_eq!(register_name(16, 8), None);
        assert_eq!(register_name(0, 3), None);
    }

    #[test]
    fn an_event_has_whole_registers_only() {
        for number in 0..=16 {
            let name = whole_register_name(number).unwrap();
            assert_eq!(whole_register(name), Some(number));
        }
        assert_eq!(whole_register("edi"), None);
        assert_eq!(whole_register_name(17), None);
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
