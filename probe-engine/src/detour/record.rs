//! What a hit leaves behind: a count, or a record in the vCPU's ring.
//!
//! The vCPU that executes this may change between any two instructions, and interrupts may hit the
//! same or another probe; so only single instructions change a block. See [`layout`].

use guest_kernel::context::TaskContext;
use guest_state::GuestVirtAddr;
use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, byte_ptr, dword_ptr, qword_ptr, registers as reg,
    word_ptr,
};

use super::environment::Environment;
use super::error::DetourError;
use super::filter::FilterCode;
use super::globs::Globs;
use super::live::Dead;
use super::pointers::{Routines, VALUE};
use super::purpose::Tag;
use super::ring_space::{RingSpace, place};
use super::saved::{Needed, RAX, RDX, Saved, gpr, scratch};
use super::values::{Moment, ValueLayout};
use super::{fetch, saved, values};
use crate::fetch::{Fetch, Fetches};
use crate::filter::Filter;
use crate::ring::{Shape, layout};
use crate::value::{Base, Value};

/// The lowest bit of a header's length in words.
const LEN_SHIFT: u32 = 32;

/// Counts a hit in the purpose's cell.
fn count(
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

/// What a detour leaves behind of a hit.
pub(super) struct Leaves<'a> {
    /// The number and the counter.
    pub(super) tag: Tag,
    /// What is in the record; without one, the hit is only counted.
    pub(super) shape: Option<&'a Shape>,
    /// The values that a filter looks at, or a record has.
    pub(super) values: &'a [Value],
    /// What a hit must meet.
    pub(super) filter: Option<&'a Filter>,
    /// The probed instruction.
    pub(super) at: GuestVirtAddr,
}

/// What is left to write, behind the rest.
#[derive(Default)]
pub(super) struct Rest {
    /// What happens when the ring is full.
    pub(super) full: Option<RingSpace>,
    /// The routines of a filter.
    pub(super) globs: Option<Globs>,
}

/// Writes the code that leaves a record or a count. It begins with everything as it is at the probe.
pub(super) fn leave(
    a: &mut CodeAssembler,
    environment: &Environment,
    leaves: &Leaves<'_>,
    dead: Dead,
    routines: &Routines,
) -> Result<Rest, DetourError> {
    let observes = leaves.filter.is_some() || leaves.shape.is_some_and(|it| !it.values.is_empty());
    let mut rest = Rest::default();
    if !observes {
        match leaves.shape {
            Some(shape) => {
                let full = record(a, environment, leaves.tag.number, shape, dead)?;
                rest.full = Some(full);
            }
            None => count(a, environment, leaves.tag.cell, dead)?,
        }
        return Ok(rest);
    }
    let live = Needed::live(dead);
    let mut stack = Saved::default();
    let registers = leaves
        .shape
        .map_or(Fetches::default(), |shape| shape.registers);
    let has_flags = leaves.values.iter().any(|value| value.base == Base::Flags);
    let flags = Fetches::default().with(Fetch::Flags);
    let wanted = if has_flags {
        registers.and(flags)
    } else {
        registers
    };
    fetch::put_aside(a, wanted, &mut stack)?;
    for number in values::USED {
        stack.save(a, number)?;
    }
    if live.flags() && stack.of_flags().is_none() {
        stack.save_arithmetic_flags(a)?;
    }
    let layout = ValueLayout::of(leaves.values, leaves.filter);
    stack.make_room(a, layout.len_bytes())?;
    values::take(
        a,
        environment,
        (leaves.values, &layout),
        (&stack, Moment::Hit(leaves.at)),
        routines,
    )?;

    let mut done = a.create_label();
    if let Some(filter) = leaves.filter {
        let globs = Globs::new(a);
        let mut code = FilterCode {
            environment,
            layout: &layout,
            globs,
        };
        code.branch(a, filter, false, done)?;
        rest.globs = Some(code.globs);
    }
    match leaves.shape {
        Some(shape) => {
            let full = observed(
                a,
                environment,
                leaves.tag.number,
                (shape, &layout),
                &stack,
                done,
            )?;
            rest.full = Some(full);
        }
        None => {
            a.mov(
                reg::r10,
                environment.block.wrapping_add(place(leaves.tag.cell)),
            )?;
            a.inc(dword_ptr(reg::r10).gs())?;
        }
    }
    a.set_label(&mut done)?;
    a.zero_bytes()?;
    stack.restore(a, live)?;
    Ok(rest)
}

/// Writes a record with the values that end at [`pointers::VALUE`].
fn observed(
    a: &mut CodeAssembler,
    environment: &Environment,
    number: u32,
    (shape, layout): (&Shape, &ValueLayout),
    stack: &Saved,
    done: CodeLabel,
) -> Result<RingSpace, IcedError> {
    let (spare, record, len) = (reg::r10, reg::r11, VALUE);
    let mut full = RingSpace::new(a, done, spare);
    measure(a, layout)?;
    a.mov(spare, environment.block)?;
    full.reserve(a, record, (shape.values_at(), Some(len)))?;
    address(a, environment, spare, record)?;
    let header = layout::header(number, (shape.values_at() / 8) as u8);
    a.mov(reg::rax, layout::open(header))?;
    lengthen(a)?;
    a.mov(qword_ptr(record), reg::rax)?;

    time(a)?;
    a.mov(qword_ptr(record + layout::RECORD_TSC), reg::rax)?;
    task(
        a,
        environment,
        (record, spare),
        shape.context.then(|| shape.context_at()),
    )?;
    let rsp = qword_ptr(reg::rsp + stack.depth());
    for (it, at) in shape.registers.layout() {
        let to = qword_ptr(record + (layout::RECORD_VALUES + at));
        fetch::write(a, it, stack, rsp, to)?;
    }
    copy_values(a, record, shape.values_at())?;
    end(a, record)?;
    Ok(full)
}

/// Where the values begin that have been taken; they end at [`VALUE`], which [`measure`] makes their length.
const TAKEN: AsmRegister64 = reg::rsi;

/// Makes [`VALUE`] the length of the values that have been taken onto the stack, at RSP.
pub(super) fn measure(a: &mut CodeAssembler, layout: &ValueLayout) -> Result<(), IcedError> {
    a.lea(TAKEN, qword_ptr(reg::rsp + layout.values()))?;
    a.sub(VALUE, TAKEN)
}

/// Adds the length of the values to that in RAX, a header. RDX is used.
pub(super) fn lengthen(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(reg::rdx, VALUE)?;
    a.shl(reg::rdx, LEN_SHIFT - 3)?;
    a.add(reg::rax, reg::rdx)
}

/// Copies the values to `at` bytes behind the record's start. RAX and RCX are used.
pub(super) fn copy_values(
    a: &mut CodeAssembler,
    record: AsmRegister64,
    at: u64,
) -> Result<(), IcedError> {
    let [mut next, mut out] = std::array::from_fn(|_| a.create_label());
    a.xor(reg::ecx, reg::ecx)?;
    a.set_label(&mut next)?;
    a.cmp(reg::rcx, VALUE)?;
    a.jae(out)?;
    a.mov(reg::rax, qword_ptr(TAKEN + reg::rcx))?;
    a.mov(qword_ptr(record + reg::rcx + at), reg::rax)?;
    a.add(reg::rcx, 8)?;
    a.jmp(next)?;
    a.set_label(&mut out)?;
    a.zero_bytes()
}

/// Writes a record of registers, and of the task if that is asked for.
fn record(
    a: &mut CodeAssembler,
    environment: &Environment,
    number: u32,
    shape: &Shape,
    dead: Dead,
) -> Result<RingSpace, IcedError> {
    let fetches = shape.registers;
    let live = Needed::live(dead);
    let needed = live.and(fetches);
    let len = shape.values_at();
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
    full.reserve(a, gpr(second), (len, None))?;
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
    task(
        a,
        environment,
        (record, spare),
        shape.context.then(|| shape.context_at()),
    )?;
    for (it, to) in others {
        fetch::write(a, it, &stack, rsp, to)?;
    }
    end(a, record)?;
    a.set_label(&mut done)?;
    a.zero_bytes()?;
    stack.restore(a, live)?;
    Ok(full)
}

/// Writes the current task's address into the record, and what the task is at `context` of the record. What isn't known
/// stays 0, as the whole record is before. Uses RAX; `task` has the task's address then.
pub(super) fn task(
    a: &mut CodeAssembler,
    environment: &Environment,
    (record, task): (AsmRegister64, AsmRegister64),
    context: Option<u64>,
) -> Result<(), IcedError> {
    let variables = &environment.variables;
    let Some(current) = variables.current_task else {
        return Ok(());
    };
    a.mov(task, qword_ptr(current).gs())?;
    a.mov(qword_ptr(record + layout::RECORD_TASK), task)?;
    let Some(context) = context else {
        return Ok(());
    };
    let numbers = [
        (variables.pid, layout::CONTEXT_PID),
        (variables.tgid, layout::CONTEXT_TGID),
    ];
    for (member, at) in numbers {
        if let Some(member) = member {
            a.mov(reg::eax, dword_ptr(task + u64::from(member)))?;
            a.mov(dword_ptr(record + (context + at)), reg::eax)?;
        }
    }
    if let Some(comm) = variables.comm {
        for part in [0, 8] {
            a.mov(reg::rax, qword_ptr(task + (u64::from(comm) + part)))?;
            a.mov(
                qword_ptr(record + (context + layout::CONTEXT_COMM + part)),
                reg::rax,
            )?;
        }
    }
    let preempt = dword_ptr(record + (context + layout::CONTEXT_PREEMPT));
    match variables.preempt_count {
        Some(count) => {
            a.mov(reg::eax, dword_ptr(count).gs())?;
            a.mov(preempt, reg::eax)?;
        }
        None => a.mov(preempt, TaskContext::default().preempt_count.cast_signed())?,
    }
    if let Some((member, size)) = variables.migration_disabled {
        let member = u64::from(member);
        match size {
            2 => a.movzx(reg::eax, word_ptr(task + member))?,
            _ => a.mov(reg::eax, dword_ptr(task + member))?,
        }
        let to = dword_ptr(record + (context + layout::CONTEXT_MIGRATION));
        a.mov(to, reg::eax)?;
    }
    if let Some(flags) = variables.thread_flags {
        a.mov(reg::rax, qword_ptr(task + u64::from(flags)))?;
        a.mov(
            qword_ptr(record + (context + layout::CONTEXT_FLAGS)),
            reg::rax,
        )?;
    }
    Ok(())
}

/// Tells the host the kind of the record that is about to be written; RAX is used.
fn begin(a: &mut CodeAssembler, record: AsmRegister64, header: u64) -> Result<(), IcedError> {
    a.mov(reg::rax, layout::open(header))?;
    a.mov(qword_ptr(record), reg::rax)
}

/// Makes a record whole. The rest is in memory before: x86 keeps the order of stores (SDM vol. 3, 9.2.2).
pub(super) fn end(a: &mut CodeAssembler, record: AsmRegister64) -> Result<(), IcedError> {
    let byte = byte_ptr(record + layout::WHOLE_BYTE as i32);
    a.mov(byte, (layout::MAGIC & 0xff) as u32)
}

/// Reads the time stamp counter to RAX; RDX is used.
pub(super) fn time(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.rdtsc()?;
    a.shl(reg::rdx, 32)?;
    a.or(reg::rax, reg::rdx)
}

/// Turns a position in RAX into an address in `second`, which is in a ring whatever the position; `first` is used.
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
