//! Random encodings.

use seeded_random::Random;

/// What follows an opcode.
#[derive(Clone, Copy)]
enum Tail {
    /// Nothing.
    Plain,
    /// `ModRM` with any `reg` field, and this many bytes of immediate; 4 means as wide as the
    /// operand, up to four bytes.
    ModRm(u8),
    /// `ModRM` with this `reg` field, and this many bytes of immediate.
    Group(u8, u8),
    /// Only an immediate; 8 is for `mov r, imm`, which has a full 64-bit one.
    Imm(u8),
    /// `ModRM` with registers only.
    Registers,
}

/// Inclusive ranges of opcodes (above 0xff: after 0F), all of which are emulated.
const OPCODES: &[(u16, u16, Tail)] = &[
    // add, or, adc, sbb, and, sub, xor, cmp: r/m and r
    (0x00, 0x03, Tail::ModRm(0)),
    (0x08, 0x0b, Tail::ModRm(0)),
    (0x10, 0x13, Tail::ModRm(0)),
    (0x18, 0x1b, Tail::ModRm(0)),
    (0x20, 0x23, Tail::ModRm(0)),
    (0x28, 0x2b, Tail::ModRm(0)),
    (0x30, 0x33, Tail::ModRm(0)),
    (0x38, 0x3b, Tail::ModRm(0)),
    // the same with AL or rAX and an immediate
    (0x04, 0x04, Tail::Imm(1)),
    (0x05, 0x05, Tail::Imm(4)),
    (0x14, 0x14, Tail::Imm(1)),
    (0x15, 0x15, Tail::Imm(4)),
    (0x2c, 0x2c, Tail::Imm(1)),
    (0x2d, 0x2d, Tail::Imm(4)),
    (0x3c, 0x3c, Tail::Imm(1)),
    (0x3d, 0x3d, Tail::Imm(4)),
    // the same on r/m and an immediate: any `reg` is one of them
    (0x80, 0x80, Tail::ModRm(1)),
    (0x81, 0x81, Tail::ModRm(4)),
    (0x83, 0x83, Tail::ModRm(1)),
    // push, pop
    (0x50, 0x5f, Tail::Plain),
    (0x68, 0x68, Tail::Imm(4)),
    (0x6a, 0x6a, Tail::Imm(1)),
    (0x8f, 0x8f, Tail::Group(0, 0)),
    (0xff, 0xff, Tail::Group(6, 0)),
    // movsxd, test, mov, lea
    (0x63, 0x63, Tail::ModRm(0)),
    (0x84, 0x85, Tail::ModRm(0)),
    (0xa8, 0xa8, Tail::Imm(1)),
    (0xa9, 0xa9, Tail::Imm(4)),
    (0x88, 0x8b, Tail::ModRm(0)),
    (0x8d, 0x8d, Tail::ModRm(0)),
    (0xb0, 0xb7, Tail::Imm(1)),
    (0xb8, 0xbf, Tail::Imm(8)),
    (0xc6, 0xc6, Tail::Group(0, 1)),
    (0xc7, 0xc7, Tail::Group(0, 4)),
    // xchg, nop
    (0x86, 0x87, Tail::Registers),
    (0x90, 0x97, Tail::Plain),
    (0x11f, 0x11f, Tail::Group(0, 0)),
    // cbw and its family, flags, pushf
    (0x98, 0x99, Tail::Plain),
    (0x9c, 0x9d, Tail::Plain),
    (0xf5, 0xf5, Tail::Plain),
    (0xf8, 0xf9, Tail::Plain),
    (0xfc, 0xfd, Tail::Plain),
    // shl, shr, sar
    (0xc0, 0xc1, Tail::Group(4, 1)),
    (0xc0, 0xc1, Tail::Group(5, 1)),
    (0xc0, 0xc1, Tail::Group(7, 1)),
    (0xd0, 0xd3, Tail::Group(4, 0)),
    (0xd0, 0xd3, Tail::Group(5, 0)),
    (0xd0, 0xd3, Tail::Group(7, 0)),
    // test, not, neg, inc, dec
    (0xf6, 0xf6, Tail::Group(0, 1)),
    (0xf7, 0xf7, Tail::Group(0, 4)),
    (0xf6, 0xf7, Tail::Group(2, 0)),
    (0xf6, 0xf7, Tail::Group(3, 0)),
    (0xfe, 0xff, Tail::Group(0, 0)),
    (0xfe, 0xff, Tail::Group(1, 0)),
    // cmovcc, setcc, movzx, movsx
    (0x140, 0x14f, Tail::ModRm(0)),
    (0x190, 0x19f, Tail::Group(0, 0)),
    (0x1b6, 0x1b7, Tail::ModRm(0)),
    (0x1be, 0x1bf, Tail::ModRm(0)),
    // leave
    (0xc9, 0xc9, Tail::Plain),
    // jcc, loops, jrcxz, jmp, call
    (0x70, 0x7f, Tail::Imm(1)),
    (0x180, 0x18f, Tail::Imm(4)),
    (0xe0, 0xe3, Tail::Imm(1)),
    (0xe8, 0xe9, Tail::Imm(4)),
    (0xeb, 0xeb, Tail::Imm(1)),
    (0xff, 0xff, Tail::Group(2, 0)),
    (0xff, 0xff, Tail::Group(4, 0)),
    // ret
    (0xc2, 0xc2, Tail::Imm(2)),
    (0xc3, 0xc3, Tail::Plain),
];

/// Returns an encoding of an instruction that the engine emulates.
pub fn emulated(random: &mut Random) -> Vec<u8> {
    let (first, last, tail) = random.pick(OPCODES);
    let opcode = first + random.below(u64::from(last - first) + 1) as u16;
    let branch = matches!(opcode, 0x70..=0x7f | 0x180..=0x18f | 0xe0..=0xeb | 0xc2 | 0xc3)
        || matches!((opcode, tail), (0xff, Tail::Group(2 | 4, _)));
    let mut code = Vec::new();
    if random.once_in(8) {
        // A prefix without effect, or a hint.
        code.push(random.pick(&[0x26, 0x2e, 0x36, 0x3e]));
    }
    if random.once_in(8) {
        code.push(0x65);
    }
    let mut word = false;
    let mut wide = false;
    if !branch {
        word = random.once_in(4);
        if word {
            code.push(0x66);
        }
        if random.once_in(2) {
            let rex = 0x40 | random.below(16) as u8;
            wide = rex & 8 != 0;
            code.push(rex);
        }
    }
    if opcode > 0xff {
        code.push(0x0f);
    }
    code.push(opcode as u8);
    let immediate = match tail {
        Tail::Plain => 0,
        Tail::Imm(len) => len,
        Tail::ModRm(len) => {
            let reg = random.below(8) as u8;
            draw_modrm(random, &mut code, reg);
            len
        }
        Tail::Group(reg, len) => {
            draw_modrm(random, &mut code, reg);
            len
        }
        Tail::Registers => {
            code.push(0xc0 | random.below(64) as u8);
            0
        }
    };
    let len = match immediate {
        8 if wide => 8,
        4 | 8 if word && !wide => 2,
        4 | 8 => 4,
        len => len,
    };
    code.extend((0..len).map(|_| random.value() as u8));
    code
}

/// Returns any bytes, many of which are an instruction.
pub fn any(random: &mut Random) -> Vec<u8> {
    const PREFIXES: [u8; 11] = [
        0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x26, 0x2e, 0x36, 0x3e, 0x65, 0x65,
    ];
    let mut code = Vec::new();
    while random.once_in(3) {
        code.push(random.pick(&PREFIXES));
    }
    if random.once_in(2) {
        code.push(0x40 | random.below(16) as u8);
    }
    match random.below(8) {
        0..=1 => code.push(0x0f),
        2 => code.extend([0x0f, 0x38]),
        3 => code.extend([0x0f, 0x3a]),
        _ => {}
    }
    code.push(random.bits() as u8);
    let reg = random.below(8) as u8;
    draw_modrm(random, &mut code, reg);
    code.extend((0..15).map(|_| random.bits() as u8));
    code.truncate(15);
    code
}

fn draw_modrm(random: &mut Random, code: &mut Vec<u8>, reg: u8) {
    let rm = random.below(8) as u8;
    let mode = random.pick(&[0, 1, 2, 3, 3]);
    code.push(mode << 6 | reg << 3 | rm);
    if mode == 3 {
        return;
    }
    let sib = (rm == 4).then(|| random.bits() as u8);
    code.extend(sib);
    let absolute = mode == 0 && (rm == 5 || sib.is_some_and(|sib| sib & 7 == 5));
    match mode {
        _ if absolute => code.extend([0; 4]),
        1 => code.push(random.bits() as u8),
        2 => code.extend((random.bits() as u32).to_le_bytes()),
        _ => {}
    }
}
