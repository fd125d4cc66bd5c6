//! A debugger in user space, and a program with int3s of its own.

use std::arch::asm;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::sys::{check, fork, wait, wait_for};

const INT3: libc::c_long = 0xcc;
/// `WIFSTOPPED` with `SIGTRAP`, and with `SIGSTOP`.
const TRAPPED: libc::c_int = libc::SIGTRAP << 8 | 0x7f;
const STOPPED: libc::c_int = libc::SIGSTOP << 8 | 0x7f;

/// Makes `count` hits of a debugger's breakpoint, and `count` int3s that a handler takes.
pub fn run(count: u64) -> io::Result<Value> {
    Ok(json!({ "debugged": debugged(count)?, "handled": handled(count)? }))
}

static CALLS: AtomicU64 = AtomicU64::new(0);

#[inline(never)]
extern "C" fn target() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Sets a breakpoint at a function of a child and steps over the instruction under it at each hit.
/// Returns how many hits there were. The child ends well only if all its calls were made.
fn debugged(count: u64) -> io::Result<u64> {
    let child = fork(|| {
        let ready = trace(libc::PTRACE_TRACEME, 0, 0, 0).is_ok();
        // SAFETY: a signal to itself, at which its tracer stops it.
        unsafe { libc::raise(libc::SIGSTOP) };
        let target: extern "C" fn() = black_box(target);
        (0..count).for_each(|_| target());
        u8::from(!ready || CALLS.load(Ordering::Relaxed) != count)
    })?;
    expect(child, STOPPED)?;
    let address = target as *const () as usize as u64;
    let original = peek(child, address)?;
    let patched = original & !0xff | INT3;
    poke(child, address, patched)?;
    let mut hits = 0;
    loop {
        trace(libc::PTRACE_CONT, child, 0, 0)?;
        match wait(child)? {
            0 => return Ok(hits),
            TRAPPED => {}
            status => return Err(unexpected(status)),
        }
        let mut registers = registers(child)?;
        if registers.rip != address + 1 {
            let rip = registers.rip;
            return Err(io::Error::other(format!(
                "a breakpoint at {address:#x} trapped with RIP {rip:#x}"
            )));
        }
        hits += 1;
        registers.rip = address;
        set_registers(child, &registers)?;
        poke(child, address, original)?;
        trace(libc::PTRACE_SINGLESTEP, child, 0, 0)?;
        expect(child, TRAPPED)?;
        poke(child, address, patched)?;
    }
}

fn expect(child: libc::pid_t, status: libc::c_int) -> io::Result<()> {
    match wait(child)? {
        found if found == status => Ok(()),
        found => Err(unexpected(found)),
    }
}

fn unexpected(status: libc::c_int) -> io::Error {
    io::Error::other(format!("the debugged process has status {status:#x}"))
}

fn peek(child: libc::pid_t, address: u64) -> io::Result<libc::c_long> {
    let mut word: libc::c_long = 0;
    // The system call itself, unlike libc's function, writes the word to its last argument.
    // SAFETY: the word lives for the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            libc::PTRACE_PEEKTEXT,
            child,
            address,
            &raw mut word,
        )
    };
    check(result as libc::c_int)?;
    Ok(word)
}

fn poke(child: libc::pid_t, address: u64, word: libc::c_long) -> io::Result<()> {
    trace(libc::PTRACE_POKETEXT, child, address, word as u64)
}

fn registers(child: libc::pid_t) -> io::Result<libc::user_regs_struct> {
    // SAFETY: a structure of integers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let to = &raw mut registers as u64;
    trace(libc::PTRACE_GETREGS, child, 0, to)?;
    Ok(registers)
}

fn set_registers(child: libc::pid_t, registers: &libc::user_regs_struct) -> io::Result<()> {
    let from = ptr::from_ref(registers) as u64;
    trace(libc::PTRACE_SETREGS, child, 0, from)
}

fn trace(request: libc::c_uint, child: libc::pid_t, address: u64, data: u64) -> io::Result<()> {
    // SAFETY: where a request reads or writes memory of this process at `data`, the callers above
    // give it a structure of its own that lives for the call.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, request, child, address, data) };
    check(result as libc::c_int).map(drop)
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Executes int3s in a child that handles the signal. Returns how many it handled.
fn handled(count: u64) -> io::Result<u64> {
    let (mut from, mut to) = io::pipe()?;
    let child = fork(|| {
        let handler: extern "C" fn(libc::c_int) = handler;
        // SAFETY: the handler only counts.
        unsafe { libc::signal(libc::SIGTRAP, handler as libc::sighandler_t) };
        for _ in 0..count {
            // SAFETY: the handler returns behind the int3.
            unsafe { asm!("int3") };
        }
        let handled = HANDLED.load(Ordering::Relaxed);
        u8::from(to.write_all(&handled.to_le_bytes()).is_err())
    })?;
    wait_for(child)?;
    let mut handled = [0; 8];
    from.read_exact(&mut handled)?;
    Ok(u64::from_le_bytes(handled))
}
