//! What a hit leaves behind: a count, or a record in the vCPU's ring.
//!
//! The vCPU that executes this may change between any two instructions, and interrupts may hit the
//! same or another probe; so only single instructions change a block. See [`layout`].

use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, byte_ptr, dword_ptr, qword_ptr, registers as reg,
};

use super::environment::Environment;
use super::error::DetourError;
use super::live::Dead;
use super::saved::{Needed, RAX, RDX, Saved, gpr, scratch};
use super::{fetch, saved};
use crate::fetch::Fetches;
use crate::ring::layout;

/// Counts a hit in the purpose's cell.
pub(super) fn count(
    a: &mut CodeAssembler,
    environment: &Environment,
    cell: u32,
    dead: Dead,
) -> Result<(), IcedError> {
    let needed = Needed::live(dead);
    let block = scratch(dead, needed, &[RAX]);
    let mut stack = Saved::default();
    for number in [needed.flags().then_some(RAX), Some(block)]
        .into_iter()
        .flatten()
        .filter(|number| needed.register(*number))
    {
        stack.save(a, number)?;
    }
    if needed.flags() {
        saved::hold_flags(a)?;
    }
    a.mov(gpr(block), environment.block.wrapping_add(place(cell)))?;
    a.inc(dword_ptr(gpr(block)).gs())?;
    if needed.flags() {
        saved::release_flags(a)?;
    }
    stack.restore(a, needed)
}

/// A counter's place in the block.
fn place(cell: u32) -> u64 {
    layout::CELLS + layout::CELL * u64::from(cell)
}

/// Space in the ring, and what is left to write: what happens when there is none.
pub(super) struct RingSpace {
    full: CodeLabel,
    retry: CodeLabel,
    done: CodeLabel,
    block: AsmRegister64,
}

/// Labels of what a lossless detour does about a full ring.
pub(super) struct Wait {
    /// The int3.
    pub(super) int3: CodeLabel,
    /// The way on without a record.
    pub(super) gives_up: CodeLabel,
}

/// Writes a record with these values, as they are at the probe.
pub(super) fn record(
    a: &mut CodeAssembler,
    environment: &Environment,
    number: u32,
    fetches: Fetches,
    dead: Dead,
) -> Result<RingSpace, IcedError> {
    let live = Needed::live(dead);
    let needed = live.and(fetches);
    let len = layout::RECORD_VALUES + fetches.len_bytes();
    let first = scratch(dead, needed, &[RAX, RDX]);
    let second = scratch(dead, needed, &[RAX, RDX, first]);

    let mut stack = Saved::default();
    fetch::put_aside(a, fetches, &mut stack)?;
    for number in [RAX, first, second] {
        if needed.register(number) {
            stack.save(a, number)?;
        }
    }
    if live.flags() && stack.of_flags().is_none() {
        stack.save_arithmetic_flags(a)?;
    }

    let mut done = a.create_label();
    let mut full = RingSpace::new(a, done, gpr(first));
    a.mov(gpr(first), environment.block)?;
    full.reserve(a, gpr(second), len)?;
    address(a, environment, gpr(first), gpr(second))?;
    begin(a, gpr(second), layout::header(number, (len / 8) as u8))?;

    let (record, spare) = (gpr(second), gpr(first));
    let rsp = qword_ptr(reg::rsp + stack.depth());
    let (in_place, others): (Vec<_>, Vec<_>) = fetches
        .layout()
        .map(|(fetch, at)| (fetch, qword_ptr(record + (layout::RECORD_VALUES + at))))
        .partition(|(it, _)| fetch::is_in_place(*it, &stack));
    for (it, to) in in_place {
        fetch::write(a, it, &stack, rsp, to)?;
    }
    let keeps_rdx = live.register(RDX);
    if keeps_rdx {
        a.mov(spare, reg::rdx)?;
    }
    time(a)?;
    a.mov(qword_ptr(record + layout::RECORD_TSC), reg::rax)?;
    if keeps_rdx {
        a.mov(reg::rdx, spare)?;
    }
    let task = qword_ptr(record + layout::RECORD_TASK);
    if let Some(current) = environment.variables.current_task {
        a.mov(spare, qword_ptr(current).gs())?;
        a.mov(task, spare)?;
    } else {
        a.mov(task, 0)?;
    }
    for (it, to) in others {
        fetch::write(a, it, &stack, rsp, to)?;
    }
    end(a, record)?;
    a.set_label(&mut done)?;
    a.zero_bytes()?;
    stack.restore(a, live)?;
    Ok(full)
}

/// Tells the host of which kind the record is that is about to be written; RAX is used.
fn begin(a: &mut CodeAssembler, record: AsmRegister64, header: u64) -> Result<(), IcedError> {
    a.mov(reg::rax, layout::open(header))?;
    a.mov(qword_ptr(record), reg::rax)
}

/// Makes a record whole. The rest is in memory before: x86 keeps the order of stores (SDM vol. 3, 9.2.2).
pub(super) fn end(a: &mut CodeAssembler, record: AsmRegister64) -> Result<(), IcedError> {
    let byte = byte_ptr(record + layout::WHOLE_BYTE as i32);
    a.mov(byte, (layout::MAGIC & 0xff) as u32)
}

/// The time stamp counter, in RAX; RDX is used.
pub(super) fn time(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.rdtsc()?;
    a.shl(reg::rdx, 32)?;
    a.or(reg::rax, reg::rdx)
}

/// Turns a position in RAX into an address in `second`, whatever the position; `first` is used.
pub(super) fn address(
    a: &mut CodeAssembler,
    environment: &Environment,
    first: AsmRegister64,
    second: AsmRegister64,
) -> Result<(), IcedError> {
    /// Rings are twice their length apart.
    const APART: u32 = (2 * layout::RING_LEN).trailing_zeros();
    const RING: u64 = (layout::RINGS - 1) << APART;
    a.mov(first, environment.rings.0)?;
    a.mov(second, reg::rax)?;
    a.shr(second, layout::RING_SHIFT - APART)?;
    a.and(reg::rax, (layout::RING_LEN - 1) as i32)?;
    a.and(second, RING as i32)?;
    a.add(first, reg::rax)?;
    a.add(second, first)
}

impl RingSpace {
    /// `done` is where it goes on without a record; `block` will have the way to the vCPU's block.
    pub(super) fn new(a: &mut CodeAssembler, done: CodeLabel, block: AsmRegister64) -> Self {
        Self {
            full: a.create_label(),
            retry: a.create_label(),
            done,
            block,
        }
    }

    /// Gives a record space in the ring. HEAD as it was is in RAX then; `second` is used.
    pub(super) fn reserve(
        &mut self,
        a: &mut CodeAssembler,
        second: AsmRegister64,
        len: u64,
    ) -> Result<(), IcedError> {
        let head = qword_ptr(self.block + layout::HEAD).gs();
        a.set_label(&mut self.retry)?;
        a.mov(reg::rax, head)?;
        a.mov(second, reg::rax)?;
        a.sub(second, qword_ptr(self.block + layout::TAIL).gs())?;
        a.cmp(second, (layout::RING_LEN - len) as i32)?;
        a.ja(self.full)?;
        a.lea(second, qword_ptr(reg::rax + len))?;
        a.cmpxchg(head, second)?;
        a.jne(self.retry)
    }

    /// Writes what happens when the ring is full: `lossless`, or a count in the cell.
    pub(super) fn write(
        mut self,
        a: &mut CodeAssembler,
        cell: u32,
        lossless: bool,
    ) -> Result<Option<Wait>, DetourError> {
        let place = i32::try_from(place(cell)).map_err(|_| DetourError::Unknown {
            name: "the detour's counter",
        })?;
        self.check(a)?;
        let mut trap = lossless.then(|| Wait::new(a));
        if let Some(trap) = &mut trap {
            self.trap(a, trap)?;
        }
        a.inc(dword_ptr(self.block + place).gs())?;
        a.jmp(self.done)?;
        Ok(trap)
    }

    /// Begins what happens: HEAD and TAIL may have been of two vCPUs, with a migration in between.
    pub(super) fn check(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.set_label(&mut self.full)?;
        a.cmp(qword_ptr(self.block + layout::HEAD).gs(), reg::rax)?;
        a.jne(self.retry)
    }

    /// Writes the trap. What follows is what happens when the host gives up.
    pub(super) fn trap(&self, a: &mut CodeAssembler, trap: &mut Wait) -> Result<(), IcedError> {
        a.set_label(&mut trap.int3)?;
        a.int3()?;
        a.jmp(self.retry)?;
        a.set_label(&mut trap.gives_up)
    }
}

impl Wait {
    pub(super) fn new(a: &mut CodeAssembler) -> Self {
        Self {
            int3: a.create_label(),
            gives_up: a.create_label(),
        }
    }
}
