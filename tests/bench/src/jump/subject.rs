//! A function, with and without a jump on it, and a loop that calls it.

use guest_state::GuestVirtAddr;
use iced_x86::code_asm::{CodeAssembler, registers as reg};
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Decoder, DecoderOptions, IcedError, InstructionBlock,
    Mnemonic,
};
use native::jump::blocks::Blocks;
use native::jump::ram::Ram;
use native::jump::region;
use native::jump::text::Text;
use probe_engine::detour::{Dead, Environment, Purpose, Region, Tag, generate, live, trampoline};
use probe_engine::ring::layout::{RING_LEN, RING_SHIFT};

use super::JumpError;
use crate::clock::Clock;

/// Where the loop, the function and the detour are.
const LOOP: usize = 0;
const FUNCTION: usize = 0x100;
const DETOUR: usize = 0x1000;
const TRAMPOLINE: usize = 0x2000;
const LEN: usize = 0x3000;

/// Calls a round: their records, of 320 bytes at most, fit into a ring.
pub const CALLS: u64 = RING_LEN / 320 - 2000;
/// Calls before a round that aren't measured.
const WARM_UP: u64 = 1000;
/// Rounds of a measurement; the figure is that of the one in the middle.
pub const ROUNDS: usize = 301;
/// Calls of the probed function while it is measured.
pub const HITS: u64 = (CALLS + WARM_UP) * ROUNDS as u64;
const CELL: u32 = 0;
/// The detour's number.
const NUMBER: u32 = 1;

/// Times in nanoseconds a call.
pub struct Measured {
    /// The time with the probe minus the time without it: the median of all rounds.
    pub median: f64,
    /// The quartiles of the same.
    pub quartiles: (f64, f64),
    /// The time without the probe.
    pub unprobed: f64,
}

/// The function and its probe.
pub struct Subject {
    text: Text,
    /// The vCPUs' memory.
    pub blocks: Blocks,
    ram: Ram,
    region: Region,
    patched: Vec<u8>,
}

impl Subject {
    /// Makes a function as compilers do, unprobed.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn new(vcpus: u8) -> Result<Self, JumpError> {
        let mut text = Text::new(LEN)?;
        let function = assemble(|a| {
            a.push(reg::r13)?;
            a.mov(reg::r13, reg::rsi)?;
            a.push(reg::rbx)?;
            a.mov(reg::rbx, reg::rdi)?;
            a.lea(reg::rax, iced_x86::code_asm::ptr(reg::rbx + reg::r13))?;
            a.pop(reg::rbx)?;
            a.pop(reg::r13)?;
            a.ret()
        })?;
        let caller = assemble(|a| {
            let mut again = a.create_label();
            a.push(reg::rbx)?;
            a.push(reg::r12)?;
            a.push(reg::r13)?;
            a.mov(reg::rbx, reg::rdi)?;
            a.mov(reg::r12, reg::rsi)?;
            a.set_label(&mut again)?;
            a.call(reg::r12)?;
            a.dec(reg::rbx)?;
            a.jne(again)?;
            a.pop(reg::r13)?;
            a.pop(reg::r12)?;
            a.pop(reg::rbx)?;
            a.ret()
        })?;
        text.put(LOOP, &caller);
        text.put(FUNCTION, &function);
        let start = text.address(FUNCTION);
        let region = region::at(start, &function).ok_or(JumpError::Thread)?;
        Ok(Self {
            patched: region.bytes.clone(),
            region,
            text,
            blocks: Blocks::new(vcpus)?,
            ram: Ram::new(),
        })
    }

    /// The guest's RAM.
    pub fn ram(&self) -> &Ram {
        &self.ram
    }

    /// Returns the registers that are dead at the function's entry.
    pub fn dead_at_entry(&self) -> Dead {
        live::dead(&self.region.bytes, self.region.start)
    }

    /// Prepares a probe on the function. `locked`: its ring may be shared by several vCPUs.
    ///
    /// # Errors
    /// There is no detour.
    pub fn probe(&mut self, purpose: &Purpose, dead: Dead, locked: bool) -> Result<(), JumpError> {
        let tag = Tag {
            number: NUMBER,
            cell: CELL,
        };
        let shared = GuestVirtAddr(self.text.address(TRAMPOLINE));
        let environment = Environment {
            following: Some(self.blocks.following(shared.0)),
            pointers: Some(self.ram.pointers(4)),
            ..self.blocks.environment(self.blocks.gs_base(0))
        };
        self.text.put(TRAMPOLINE, &trampoline(&environment)?.code);
        let at = GuestVirtAddr(self.text.address(DETOUR));
        let mut detour = generate(&environment, &self.region, dead, purpose, tag, at)?;
        if locked {
            detour.code = with_lock(&detour.code, at.0)?;
        }
        self.text.put(DETOUR, &detour.code);
        self.patched = region::patched(&self.region, &detour);
        Ok(())
    }

    /// Writes the jump, or restores the text.
    pub fn patch(&mut self, on: bool) {
        let bytes = if on {
            &self.patched
        } else {
            &self.region.bytes
        };
        self.text.put(FUNCTION, bytes);
    }

    /// Calls the function `times` times.
    pub fn call(&self, times: u64) {
        let function = self.text.address(FUNCTION);
        // SAFETY: the loop is there, keeps to the ABI, and calls the function as often, which is there
        // with or without a jump to a complete detour.
        let _result = unsafe { self.text.call(LOOP, [times, function]) };
    }

    /// Returns what [`ROUNDS`] have left behind: bytes in the ring, and the count.
    pub fn traces(&self) -> (u64, u32) {
        const BYTES: u64 = (1 << RING_SHIFT) - 1;
        let counted = self.blocks.cell(0, CELL) + self.blocks.tally(NUMBER).counted;
        (self.blocks.head(0) & BYTES, counted)
    }

    /// Measures the nanoseconds of a call in one round, on this thread, as the first vCPU: without the probe, and with
    /// it.
    ///
    /// # Errors
    /// The system doesn't let the GS base be set.
    pub fn round(&mut self, clock: &Clock) -> Result<[f64; 2], JumpError> {
        self.blocks.enter(0)?;
        Ok([false, true].map(|on| {
            self.patch(on);
            self.call(WARM_UP);
            self.blocks.discard(0);
            let (ticks, ()) = clock.time(|| self.call(CALLS));
            clock.nanoseconds(ticks) / CALLS as f64
        }))
    }

    /// Measures [`ROUNDS`] rounds.
    ///
    /// # Errors
    /// The system doesn't let the GS base be set.
    pub fn measure(&mut self, clock: &Clock) -> Result<Measured, JumpError> {
        let mut above = Vec::new();
        let mut unprobed = Vec::new();
        for _ in 0..ROUNDS {
            let [without, with] = self.round(clock)?;
            above.push(with - without);
            unprobed.push(without);
        }
        above.sort_by(f64::total_cmp);
        unprobed.sort_by(f64::total_cmp);
        Ok(Measured {
            median: above[ROUNDS / 2],
            quartiles: (above[ROUNDS / 4], above[ROUNDS * 3 / 4]),
            unprobed: unprobed[ROUNDS / 2],
        })
    }
}

fn assemble(
    code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    code(&mut a)?;
    // The code doesn't depend on its address.
    a.assemble(0)
}

/// A detour that reserves space in a ring with a locked instruction.
fn with_lock(code: &[u8], at: u64) -> Result<Vec<u8>, IcedError> {
    let mut instructions: Vec<_> = Decoder::with_ip(64, code, at, DecoderOptions::NONE)
        .into_iter()
        .collect();
    for insn in &mut instructions {
        if insn.mnemonic() == Mnemonic::Cmpxchg {
            insn.set_has_lock_prefix(true);
        }
    }
    let block = InstructionBlock::new(&instructions, at);
    Ok(BlockEncoder::encode(64, block, BlockEncoderOptions::NONE)?.code_buffer)
}
