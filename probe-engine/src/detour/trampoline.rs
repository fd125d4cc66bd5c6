//! The code that return probes' detours share: the routine that starts to follow a call, and what the call returns to.
//!
//! The task that makes a call follows it, so no other task looks for the same key; but several vCPUs may want the same
//! free place in a bucket. Interrupts may hit anywhere, and be probed themselves: their calls have their return
//! addresses elsewhere on the stack.
//!
//! The calls at one place are a stack: their functions have jumped into each other. In between, another tracer, such as
//! the guest's own `function_graph` or kretprobes, may have put an address of its own in the place of ours. It puts
//! ours back when the calls that began later have returned.
//!
//! The host may look at the table between any two instructions. It finds a key only for a call that is whole, and
//! leaves a call alone that has begun to return. So each call is counted out once: by this code or by the host.

use guest_state::x86_64::INT3;
use iced_x86::code_asm::{
    AsmRegister32, AsmRegister64, CodeAssembler, CodeLabel, dword_ptr, qword_ptr, registers as reg,
};
use iced_x86::{BlockEncoderOptions, IcedError};

use super::call_table::{BUCKET, SLOT, TABLE, WAY, above, each_key, key, to_bucket, to_call};
use super::code::Full;
use super::environment::{Environment, Following};
use super::error::DetourError;
use super::live::Dead;
use super::record;
use super::ring_space::{RingSpace, Wait};
use super::saved::{Needed, Saved};
use super::way_out::{WayOut, way_out};
use super::{return_record, values};
use crate::calls::layout::{
    ACTIVE, AT_RETURN, CALLER, CANARY, COUNTED, ENDED, ENTER, LEVEL, LOSSLESS, MISSED, NUMBER,
    ORIGIN, ORPHAN, PUSHED, RETURNS, TALLIES, TALLY_LEN, TASK, TRAMPOLINES, UNFINISHED, VALUES,
    WORD,
};

/// The shared code, right at one address only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trampoline {
    /// The code. Followed calls return to its beginning.
    pub code: Vec<u8>,
    /// The int3 that a lossless probe's call comes to with the ring full, and the way on, as in
    /// [`super::Detour::full`]. Then EAX has the number of the call's detour.
    pub full: Full,
    /// Where in the code the call has been reported, by its record or a counter, and is still in the table.
    pub told: [u32; 4],
    /// Bytes that RSP is below the place of the call's return address there.
    pub depth: u64,
}

impl Trampoline {
    /// Returns true if a return address at `offset` stands for that of a followed call, which the code has yet to put
    /// back. Such addresses are the code's start, to which the call returns, and what the code's first instruction
    /// pushes.
    pub fn is_return(offset: u32) -> bool {
        matches!(offset.into(), 0 | PUSHED)
    }

    /// Returns what the code at `offset` leads to: the return address of the followed call, or of a call of [`ENTER`].
    pub fn way_out(&self, offset: u32) -> Option<WayOut> {
        way_out(&self.code, offset, |_| false)
    }
}

/// Generates the code that is shared, for the address [`super::Following::trampoline`].
///
/// # Errors
/// It can't be encoded, or the environment has no table.
pub fn trampoline(environment: &Environment) -> Result<Trampoline, DetourError> {
    let following = environment.following.ok_or(DetourError::Unknown {
        name: "the table of calls",
    })?;
    let mut a = CodeAssembler::new(64)?;
    let mut body = a.create_label();
    // The processor predicts where a `ret` leads by the calls that it has seen (Intel optimization manual,
    // 3.4.1.4). The function's `ret` has used its caller's entry up; this call makes up for it. It also
    // leaves room for the caller's address.
    a.call(body)?;
    a.db(&[INT3; (ENTER - PUSHED) as usize])?;
    enter(&mut a, environment, &following)?;
    a.set_label(&mut body)?;
    let left = leave(&mut a, environment, &following)?;

    let encoded = a.assemble_options(
        following.trampoline.0,
        BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS,
    )?;
    let offset = |label| {
        let ip = encoded.label_ip(label)?;
        Ok::<_, DetourError>(ip.wrapping_sub(following.trampoline.0) as u32)
    };
    let mut told = [0; 4];
    for (told, label) in told.iter_mut().zip(&left.told) {
        *told = offset(label)?;
    }
    Ok(Trampoline {
        full: Full {
            trap: offset(&left.trap.int3)?,
            gives_up: offset(&left.trap.gives_up)?,
        },
        told,
        depth: left.depth,
        code: encoded.inner.code_buffer,
    })
}

/// Writes the routine that a detour calls. R11 is the address of the call's return address; R10's low half is the
/// call's word, its high half how many calls of the detour may be followed at a time.
///
/// Afterwards RAX is the call's place in the table, or 0 if it isn't followed. R10, R11 and flags are lost.
fn enter(
    a: &mut CodeAssembler,
    environment: &Environment,
    following: &Following,
) -> Result<(), IcedError> {
    let [mut nested, mut insert, mut got, mut undo, mut out] = labels(a);
    let (tally, origin, spare) = (reg::rbx, reg::rsi, reg::rdi);
    let (task, canary, level) = (reg::r8, reg::r12, reg::r13d);
    let saved = [
        TABLE,
        WAY,
        tally,
        origin,
        spare,
        reg::rdx,
        task,
        canary,
        reg::r13,
    ];
    for register in saved {
        a.push(register)?;
    }
    a.mov(TABLE, following.table.0)?;
    a.mov(reg::edx, reg::r10d)?;
    a.shr(reg::r10, 32)?;
    to_tally(a, tally, reg::ebx, reg::edx)?;
    a.mov(reg::eax, 1)?;
    a.lock().xadd(dword_ptr(tally + ACTIVE), reg::eax)?;
    a.cmp(reg::eax, reg::r10d)?;
    a.jae(undo)?;

    to_bucket(a)?;
    to_task(a, environment, (task, reg::r8d), (canary, reg::r12d))?;
    a.xor(level, level)?;
    a.mov(origin, qword_ptr(SLOT))?;
    a.mov(spare, following.trampoline.0)?;
    a.mov(reg::rax, origin)?;
    a.sub(reg::rax, spare)?;
    a.cmp(reg::rax, TRAMPOLINES as i32)?;
    a.jb(nested)?;

    // Other calls may be at the same place. One of this task has jumped here by way of another tracer, which has taken
    // its return address too; it returns after this one. One of another task has ended, as the stack is this task's
    // now.
    each_key(a, |a, next| {
        let [mut ended, mut uncounted] = labels(a);
        a.cmp(key(), SLOT)?;
        a.jne(next)?;
        to_call(a, spare)?;
        a.cmp(qword_ptr(spare + TASK), task)?;
        a.jne(ended)?;
        a.cmp(qword_ptr(spare + CANARY), canary)?;
        a.jne(ended)?;
        above(a, level, spare, next)?;
        a.jmp(next)?;
        a.set_label(&mut ended)?;
        // The host may have taken it out a moment ago, and another call may have its place.
        a.mov(reg::rax, SLOT)?;
        a.lea(origin, qword_ptr(SLOT + UNFINISHED))?;
        a.lock().cmpxchg(key(), origin)?;
        a.mov(origin, qword_ptr(SLOT))?;
        a.jne(next)?;
        a.mov(reg::eax, dword_ptr(spare + WORD))?;
        a.test(reg::eax, ORPHAN as i32)?;
        a.jne(uncounted)?;
        to_tally(a, spare, reg::edi, reg::eax)?;
        a.lock().dec(dword_ptr(spare + ACTIVE))?;
        a.lock().inc(dword_ptr(spare + ENDED))?;
        a.set_label(&mut uncounted)?;
        a.mov(key(), 0)
    })?;

    a.set_label(&mut insert)?;
    a.lea(spare, qword_ptr(SLOT + UNFINISHED))?;
    each_key(a, |a, next| {
        a.cmp(key(), 0)?;
        a.jne(next)?;
        a.xor(reg::eax, reg::eax)?;
        a.lock().cmpxchg(key(), spare)?;
        a.je(got)
    })?;
    a.set_label(&mut undo)?;
    a.lock().dec(dword_ptr(tally + ACTIVE))?;
    a.lock().inc(dword_ptr(tally + MISSED))?;
    a.xor(reg::eax, reg::eax)?;
    a.set_label(&mut out)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;

    a.set_label(&mut got)?;
    to_call(a, reg::rax)?;
    a.mov(dword_ptr(reg::rax + WORD), reg::edx)?;
    a.mov(dword_ptr(reg::rax + LEVEL), level)?;
    a.mov(qword_ptr(reg::rax + ORIGIN), origin)?;
    a.mov(qword_ptr(reg::rax + TASK), task)?;
    a.mov(qword_ptr(reg::rax + CANARY), canary)?;
    a.mov(spare, qword_ptr(SLOT))?;
    a.mov(qword_ptr(reg::rax + CALLER), spare)?;
    a.mov(key(), SLOT)?;
    a.mov(spare, following.trampoline.0)?;
    a.mov(qword_ptr(SLOT), spare)?;
    a.jmp(out)?;

    // One function has jumped into another, so that both return at once. This code knows nothing of the calls that
    // breakpoints follow.
    a.set_label(&mut nested)?;
    a.test(reg::rax, reg::rax)?;
    a.jne(undo)?;
    each_key(a, |a, next| {
        a.cmp(key(), SLOT)?;
        a.jne(next)?;
        to_call(a, spare)?;
        above(a, level, spare, next)?;
        a.mov(origin, qword_ptr(spare + ORIGIN))
    })?;
    a.test(level, level)?;
    a.jne(insert)?;
    a.jmp(undo)
}

/// Finds the task that makes the call, and its stack canary: each a register and its lower half.
fn to_task(
    a: &mut CodeAssembler,
    environment: &Environment,
    (task, low): (AsmRegister64, AsmRegister32),
    (canary, canary_low): (AsmRegister64, AsmRegister32),
) -> Result<(), IcedError> {
    match environment.variables.current_task {
        Some(current) => a.mov(task, qword_ptr(current).gs())?,
        None => a.xor(low, low)?,
    }
    match environment
        .variables
        .current_task
        .and(environment.variables.stack_canary)
    {
        Some(at) => a.mov(canary, qword_ptr(task + at)),
        None => a.xor(canary_low, canary_low),
    }
}

/// See [`Trampoline`].
struct Left {
    trap: Wait,
    told: [CodeLabel; 4],
    depth: u64,
}

/// Writes what a followed call returns to. RSP is at what was its return address.
fn leave(
    a: &mut CodeAssembler,
    environment: &Environment,
    following: &Following,
) -> Result<Left, IcedError> {
    let [mut records, mut whole, mut with_values, mut counts] = labels(a);
    let [mut done, mut gone, mut lost] = labels(a);
    let [mut recorded, mut missed] = labels(a);
    let (call, word) = (values::CALL, return_record::CALL_WORD);
    let (way, bucket, tally) = (reg::r12, reg::r13, reg::r15);
    let stack = Saved::save_all(a)?;
    a.mov(TABLE, following.table.0)?;
    a.lea(SLOT, qword_ptr(reg::rsp + stack.depth()))?;
    to_bucket(a)?;
    a.xor(reg::ebx, reg::ebx)?;
    a.xor(reg::r13d, reg::r13d)?;
    // Of several calls, the one that began last returns first.
    each_key(a, |a, next| {
        a.cmp(key(), SLOT)?;
        a.jne(next)?;
        to_call(a, reg::rdi)?;
        above(a, reg::r13d, reg::rdi, next)?;
        a.mov(call, reg::rdi)?;
        a.mov(way, WAY)
    })?;
    a.test(call, call)?;
    a.je(lost)?;
    a.mov(bucket, BUCKET)?;
    // From here on the host leaves the call to us.
    a.lock()
        .bts(dword_ptr(call + WORD), RETURNS.trailing_zeros())?;
    a.mov(word, dword_ptr(call + WORD))?;
    a.mov(reg::rax, qword_ptr(call + CALLER))?;
    a.mov(qword_ptr(SLOT), reg::rax)?;
    a.test(word, ORPHAN as i32)?;
    a.jne(gone)?;
    to_tally(a, tally, reg::r15d, word)?;
    a.test(word, word)?;
    a.js(counts)?;
    a.set_label(&mut records)?;
    a.test(word, VALUES as i32)?;
    a.jne(with_values)?;
    let mut full = return_record::write(a, environment, &stack, None, done)?;
    a.set_label(&mut whole)?;
    record::end(a, return_record::RECORD)?;
    a.set_label(&mut recorded)?;
    a.jmp(done)?;

    a.set_label(&mut counts)?;
    a.lock().inc(dword_ptr(tally + COUNTED))?;
    a.set_label(&mut done)?;
    a.lock().dec(dword_ptr(tally + ACTIVE))?;
    a.set_label(&mut gone)?;
    a.mov(qword_ptr(bucket + way * 8), 0)?;
    let all = Needed::live(Dead::default());
    stack.restore(a, all)?;
    a.ret()?;

    // The guest has destroyed the table, so the return address of this call is lost.
    a.set_label(&mut lost)?;
    stack.restore(a, all)?;
    a.int3()?;
    let mut no_room = a.create_label();
    full.check(a)?;
    a.jmp(no_room)?;
    // Only the call's detour knows its values.
    a.set_label(&mut with_values)?;
    a.call(qword_ptr(call + AT_RETURN))?;
    a.jb(no_room)?;
    a.test(return_record::RECORD, return_record::RECORD)?;
    a.jne(whole)?;
    // The call's filter isn't met.
    a.jmp(done)?;
    a.set_label(&mut no_room)?;
    let trap = when_full(a, &full, (word, tally), records)?;
    a.set_label(&mut missed)?;
    a.jmp(done)?;
    Ok(Left {
        trap,
        told: [recorded, missed, done, gone],
        depth: stack.depth().unsigned_abs().into(),
    })
}

/// Writes what happens when the ring is full, up to where the call has been counted as missed. If the host has made
/// room, execution goes on at `retry`.
fn when_full(
    a: &mut CodeAssembler,
    full: &RingSpace,
    (word, tally): (AsmRegister32, AsmRegister64),
    retry: CodeLabel,
) -> Result<Wait, IcedError> {
    let mut trap = Wait::new(a);
    a.test(word, LOSSLESS as i32)?;
    a.je(trap.gives_up)?;
    a.mov(reg::eax, word)?;
    a.and(reg::eax, NUMBER as i32)?;
    full.trap(a, &mut trap, retry)?;
    a.lock().inc(dword_ptr(tally + MISSED))?;
    Ok(trap)
}

fn labels<const N: usize>(a: &mut CodeAssembler) -> [CodeLabel; N] {
    std::array::from_fn(|_| a.create_label())
}

/// Makes a register the address of the tally of the detour that a call's word names; `low` is its lower half.
fn to_tally(
    a: &mut CodeAssembler,
    tally: AsmRegister64,
    low: AsmRegister32,
    word: AsmRegister32,
) -> Result<(), IcedError> {
    a.mov(low, word)?;
    a.and(low, NUMBER as i32)?;
    a.shl(low, TALLY_LEN.trailing_zeros())?;
    a.lea(tally, qword_ptr(TABLE + tally + TALLIES))
}
