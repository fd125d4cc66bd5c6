//! One instruction and what it starts from.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use probe_engine::vcpu::Registers;

use super::random::Random;

/// Bytes of memory that an instruction may touch.
pub const DATA: usize = 8192;

/// The flags that user mode may set freely: CF, PF, AF, ZF, SF, DF, OF.
const FLAGS: u64 = 0xcd5;

/// Where a case runs.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Address of the instruction.
    pub code: u64,
    /// Length from there to where taken branches have to go. Not taken, they
    /// fall through.
    pub landing: u64,
    /// Address of the memory, `DATA` bytes.
    pub data: u64,
}

/// What is executed.
#[derive(Debug, Clone)]
pub struct Case {
    /// The instruction and nothing else.
    pub code: Vec<u8>,
    /// The same, decoded.
    pub insn: Instruction,
    /// With RIP at the instruction.
    pub registers: Registers,
    /// The memory.
    pub data: Vec<u8>,
}

/// How an opcode goes on.
#[derive(Clone, Copy)]
enum Tail {
    /// Nothing.
    Plain,
    /// `ModRM`, any `reg` field, and so many bytes of immediate, 4 meaning as wide
    /// as the operand, up to four bytes.
    ModRm(u8),
    /// `ModRM` with this `reg` field, and so many bytes of immediate.
    Group(u8, u8),
    /// Immediate only; 8 is for `mov r, imm`, which has a full 64-bit one.
    Imm(u8),
    /// `ModRM` of registers only.
    Registers,
}

/// Inclusive ranges of opcodes (above 0xff: after 0F) that are all emulated.
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

impl Case {
    /// A random case; `None` when the draw can't be executed safely.
    pub fn draw(random: &mut Random, layout: Layout) -> Option<Self> {
        let (code, relative) = draw_code(random);
        let mut decoder = Decoder::with_ip(64, &code, layout.code, DecoderOptions::NONE);
        let insn = decoder.decode();
        if insn.is_invalid() || insn.len() != code.len() {
            return None;
        }
        let mut case = Self {
            code,
            insn,
            registers: draw_registers(random, layout),
            data: (0..DATA).map(|_| random.next() as u8).collect(),
        };
        if relative {
            case.aim_branch(layout)?;
        }
        case.aim_memory(random, layout)?;
        case.aim_indirect(layout)?;
        Some(case)
    }

    /// Makes a relative branch go to the landing.
    fn aim_branch(&mut self, layout: Layout) -> Option<()> {
        let len = self.code.len();
        let by = i32::try_from(layout.landing.checked_sub(len as u64)?).ok()?;
        match self.insn.op0_kind() {
            OpKind::NearBranch64 if self.code[0] == 0xe8 || self.code[0] == 0xe9 => {
                self.code[len - 4..].copy_from_slice(&by.to_le_bytes());
            }
            OpKind::NearBranch64 if self.code[0] == 0x0f => {
                self.code[len - 4..].copy_from_slice(&by.to_le_bytes());
            }
            OpKind::NearBranch64 => self.code[len - 1] = u8::try_from(by).ok()?,
            _ => return None,
        }
        self.decode_again(layout)
    }

    fn decode_again(&mut self, layout: Layout) -> Option<()> {
        let mut decoder = Decoder::with_ip(64, &self.code, layout.code, DecoderOptions::NONE);
        self.insn = decoder.decode();
        (!self.insn.is_invalid()).then_some(())
    }

    /// Makes a memory operand lie in the data, by its base register or, if it is
    /// relative to RIP, its displacement.
    fn aim_memory(&mut self, random: &mut Random, layout: Layout) -> Option<()> {
        let insn = self.insn;
        let memory = (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Memory);
        if !memory || matches!(insn.mnemonic(), Mnemonic::Lea | Mnemonic::Nop) {
            return Some(());
        }
        let wanted = layout.data + 64 + random.below(DATA as u64 - 128);
        let displacement = insn.memory_displacement64();
        match insn.memory_base() {
            Register::RIP => {
                // In these encodings, only an immediate comes after it.
                let at = self.code.iter().rposition(|b| *b == 0xd1)?.checked_sub(3)?;
                let by = i32::try_from(wanted.wrapping_sub(insn.next_ip()).cast_signed()).ok()?;
                if self.code[at..at + 4] != [0xd1; 4] {
                    return None;
                }
                self.code[at..at + 4].copy_from_slice(&by.to_le_bytes());
                self.decode_again(layout)
            }
            Register::None | Register::RSP => None,
            base => {
                let index = match insn.memory_index() {
                    Register::None => 0,
                    index if index == base => return None,
                    index => {
                        let value = get(&self.registers, index)?;
                        value.wrapping_mul(u64::from(insn.memory_index_scale()))
                    }
                };
                set(
                    &mut self.registers,
                    base,
                    wanted.wrapping_sub(index).wrapping_sub(displacement),
                )
            }
        }
    }

    /// Makes an indirect branch and a return go to the landing, and `popf` pop
    /// flags that user mode may set.
    fn aim_indirect(&mut self, layout: Layout) -> Option<()> {
        let landing = layout.code + layout.landing;
        let stack = self.registers.rsp;
        match (self.insn.mnemonic(), self.insn.op0_kind()) {
            (Mnemonic::Call | Mnemonic::Jmp, OpKind::Register) => {
                let register = self.insn.op0_register();
                // A stack there would be in the code.
                (register != Register::RSP).then_some(())?;
                set(&mut self.registers, register, landing)
            }
            (Mnemonic::Call | Mnemonic::Jmp, OpKind::Memory) => {
                let at = self
                    .insn
                    .virtual_address(0, 0, |register, _, _| match register {
                        Register::DS | Register::SS | Register::CS | Register::ES => Some(0),
                        _ => get(&self.registers, register),
                    })?;
                self.poke(at, landing, layout)
            }
            (Mnemonic::Ret, _) => self.poke(stack, landing, layout),
            (Mnemonic::Popfq, _) => {
                let flags = self.data[0];
                let flags = u64::from(flags) << 4 | u64::from(self.data[1]);
                self.poke(stack, flags & FLAGS | 0x202, layout)
            }
            (Mnemonic::Popf, _) => None,
            _ => Some(()),
        }
    }

    fn poke(&mut self, at: u64, value: u64, layout: Layout) -> Option<()> {
        let at = usize::try_from(at.checked_sub(layout.data)?).ok()?;
        self.data
            .get_mut(at..at + 8)?
            .copy_from_slice(&value.to_le_bytes());
        Some(())
    }
}

/// An instruction, and whether it is a relative branch.
fn draw_code(random: &mut Random) -> (Vec<u8>, bool) {
    let (first, last, tail) = random.pick(OPCODES);
    let opcode = first + random.below(u64::from(last - first) + 1) as u16;
    let branch = matches!(opcode, 0x70..=0x7f | 0x180..=0x18f | 0xe0..=0xeb | 0xc2 | 0xc3)
        || matches!((opcode, tail), (0xff, Tail::Group(2 | 4, _)));
    let mut code = Vec::new();
    let mut word = false;
    let mut wide = false;
    if !branch {
        word = random.below(4) == 0;
        if word {
            code.push(0x66);
        }
        if random.below(2) == 0 {
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
    // Keep 0xd1, the mark of a displacement to be filled in, out of immediates.
    code.extend((0..len).map(|_| (random.value() as u8).max(1) & 0x7f));
    if opcode == 0xc2 {
        let at = code.len() - 1;
        code[at] = 0;
    }
    (
        code,
        matches!(opcode, 0x70..=0x7f | 0x180..=0x18f | 0xe0..=0xe3 | 0xe8..=0xeb),
    )
}

fn draw_modrm(random: &mut Random, code: &mut Vec<u8>, reg: u8) {
    let rm = random.below(8) as u8;
    let mode = random.pick(&[0, 1, 2, 3, 3]);
    code.push(mode << 6 | reg << 3 | rm);
    if mode == 3 {
        return;
    }
    let sib = (rm == 4).then(|| random.next() as u8);
    code.extend(sib);
    let absolute = mode == 0 && (rm == 5 || sib.is_some_and(|sib| sib & 7 == 5));
    match mode {
        _ if absolute => code.extend([0xd1; 4]),
        1 => code.push(random.next() as u8 & 0x7f),
        2 => code.extend((random.next() as u32 & 0x7f7f_7f7f).to_le_bytes()),
        _ => {}
    }
}

fn draw_registers(random: &mut Random, layout: Layout) -> Registers {
    let middle = |random: &mut Random| layout.data + 1024 + random.below(DATA as u64 - 2048);
    Registers {
        rax: random.value(),
        rbx: random.value(),
        // Often a shift count.
        rcx: if random.below(2) == 0 {
            random.below(70)
        } else {
            random.value()
        },
        rdx: random.value(),
        rsi: random.value(),
        rdi: random.value(),
        rsp: middle(random),
        // `leave` makes it the stack.
        rbp: middle(random),
        r8: random.value(),
        r9: random.value(),
        r10: random.value(),
        r11: random.value(),
        r12: random.value(),
        r13: random.value(),
        r14: random.value(),
        r15: random.value(),
        rip: layout.code,
        rflags: random.next() & FLAGS | 0x202,
    }
}

/// The field of a 64-bit register.
fn field(registers: &mut Registers, register: Register) -> Option<&mut u64> {
    Some(match register {
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

fn get(registers: &Registers, register: Register) -> Option<u64> {
    field(&mut registers.clone(), register).map(|field| *field)
}

fn set(registers: &mut Registers, register: Register, value: u64) -> Option<()> {
    *field(registers, register)? = value;
    Some(())
}
