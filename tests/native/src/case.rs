//! One instruction and its initial state.

use std::sync::OnceLock;

use guest_state::Registers;
use iced_x86::{ConstantOffsets, Decoder, DecoderOptions, Instruction};
use seeded_random::Random;

use crate::aim;
use crate::cpu::{DATA_LEN, Layout, VECTORS_LEN};
use crate::forms::unfit;

/// The flags that user mode may set freely: CF, PF, AF, ZF, SF, DF, OF.
pub const FLAGS: u64 = 0xcd5;
/// The flags that are always set in user mode: IF and the reserved one.
pub const ALWAYS: u64 = 0x202;

/// What is executed.
#[derive(Debug, Clone)]
pub struct Case {
    /// The bytes of the instruction.
    pub code: Vec<u8>,
    /// The decoded instruction.
    pub insn: Instruction,
    /// With RIP at the instruction.
    pub registers: Registers,
    /// Base of the GS segment.
    pub gs_base: u64,
    /// The memory.
    pub data: Vec<u8>,
    /// XMM0 to XMM15, and the upper halves of YMM0 to YMM15.
    pub vectors: Vec<u8>,
}

impl Case {
    /// Makes a case of the instruction that `code` begins with, with a random state in which it can
    /// be executed: its operands in memory are in the data, and its branches go to the landing.
    /// Constants in the encoding are changed for that, its form stays.
    ///
    /// # Errors
    /// Why it can't.
    pub fn new(code: &[u8], random: &mut Random, layout: Layout) -> Result<Self, &'static str> {
        let (insn, _) = decode(code, layout.code).ok_or("it is no instruction")?;
        if let Some(why) = unfit(&insn) {
            return Err(why);
        }
        let mut case = Self {
            code: code[..insn.len()].to_vec(),
            insn,
            registers: draw_registers(random, layout),
            gs_base: 0,
            data: draw_data(random, DATA_LEN),
            vectors: draw_data(random, VECTORS_LEN),
        };
        aim::branch(&mut case, layout)?;
        aim::implicit(&mut case, random, layout);
        aim::memory(&mut case, random, layout)?;
        aim::target(&mut case, layout)?;
        Ok(case)
    }

    /// Makes a case with this state, in which nothing is changed.
    ///
    /// # Errors
    /// If it is no instruction, or one that can't be executed here.
    pub fn exactly(
        code: &[u8],
        registers: Registers,
        data: &[u8],
        layout: Layout,
    ) -> Result<Self, &'static str> {
        let (insn, _) = decode(code, layout.code).ok_or("it is no instruction")?;
        if let Some(why) = unfit(&insn) {
            return Err(why);
        }
        let mut whole = data.to_vec();
        whole.resize(DATA_LEN, 0);
        Ok(Self {
            code: code[..insn.len()].to_vec(),
            insn,
            registers: Registers {
                rip: layout.code,
                rflags: registers.rflags & FLAGS | ALWAYS,
                ..registers
            },
            gs_base: 0,
            data: whole,
            vectors: vec![0; VECTORS_LEN],
        })
    }

    /// Replaces bytes of the code.
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8], layout: Layout) -> Option<()> {
        self.code
            .get_mut(at..at.checked_add(bytes.len())?)?
            .copy_from_slice(bytes);
        let (insn, _) = decode(&self.code, layout.code)?;
        (insn.code() == self.insn.code() && insn.len() == self.code.len()).then(|| self.insn = insn)
    }

    /// Where the parts of the encoding are.
    pub(crate) fn offsets(&self, layout: Layout) -> ConstantOffsets {
        decode(&self.code, layout.code).map_or_else(ConstantOffsets::default, |found| found.1)
    }

    /// Writes 8 bytes of the memory.
    pub(crate) fn poke(&mut self, at: u64, value: u64, layout: Layout) -> Option<()> {
        let at = usize::try_from(at.checked_sub(layout.data)?).ok()?;
        self.data
            .get_mut(at..at.checked_add(8)?)?
            .copy_from_slice(&value.to_le_bytes());
        Some(())
    }
}

fn decode(code: &[u8], at: u64) -> Option<(Instruction, ConstantOffsets)> {
    let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    let insn = decoder.decode();
    (!insn.is_invalid()).then(|| (insn, decoder.get_constant_offsets(&insn)))
}

/// Returns a random piece of bytes that are drawn once: drawing them for each case takes too long.
fn draw_data(random: &mut Random, len: usize) -> Vec<u8> {
    static POOL: OnceLock<Vec<u8>> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        let mut pool = vec![0; 16 * DATA_LEN];
        Random::new(0).fill(&mut pool);
        pool
    });
    let start = random.below((pool.len() - len) as u64) as usize;
    pool[start..start + len].to_vec()
}

fn draw_registers(random: &mut Random, layout: Layout) -> Registers {
    let middle = |random: &mut Random| layout.data + 1024 + random.below(DATA_LEN as u64 - 2048);
    Registers {
        rax: random.value(),
        rbx: random.value(),
        // RCX is often a shift count.
        rcx: if random.once_in(2) {
            random.below(70)
        } else {
            random.value()
        },
        rdx: random.value(),
        rsi: random.value(),
        rdi: random.value(),
        rsp: middle(random),
        // `leave` makes RBP the stack pointer.
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
        rflags: random.bits() & FLAGS | ALWAYS,
    }
}
