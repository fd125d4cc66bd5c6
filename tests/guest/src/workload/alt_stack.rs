//! Signals with a missing page in their stack, so that the kernel faults when it saves the FPU's registers.

use std::arch::asm;
use std::cell::Cell;
use std::io;
use std::ptr;

use serde_json::{Value, json};

use super::sys::check;
use super::threads::{self, online_cpus};

/// Bytes of the stack.
const LENGTH: usize = 64 << 10;

const PAGE: usize = 4096;
/// Offset of the header of the FPU's state (SDM vol. 1, 13.4.2).
const HEADER: usize = 512;

thread_local! {
    static HANDLED: Cell<u64> = const { Cell::new(0) };
    /// Address at which the kernel has stored the FPU's state.
    static STATE: Cell<usize> = const { Cell::new(0) };
}

/// One thread on each CPU sends itself a signal `count` times, each time after discarding a page of the signal's stack.
/// The registers must have their values again when the handler is done.
///
/// The kernel writes the FPU's state to that stack with page faults forbidden (Linux `arch/x86/kernel/fpu/signal.c`,
/// `copy_fpstate_to_sigframe`), goes on at a fix-up when that fails, makes the pages, and tries again. It writes the
/// header before that by other means. So the stack is placed such that the header's page is present and the page before
/// it isn't.
pub fn run(count: u64) -> io::Result<Value> {
    let cpus = online_cpus()?.len();
    threads::on_each_cpu(|cpu| thread(cpu as u64, count))?;
    let each = cpus as u64;
    Ok(json!({ "cpus": cpus, "signals": each * (count + 2), "faults": each * (count + 1) }))
}

fn thread(cpu: u64, count: u64) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel chooses. It stays until the process ends.
    let start = unsafe { libc::mmap(ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::ucontext_t) = handler;
    // SAFETY: an all-zero sigaction is valid: no mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_ONSTACK | libc::SA_SIGINFO;
    // SAFETY: the handler changes only what is its thread's own.
    check(unsafe { libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut()) })?;
    use_stack(start, LENGTH)?;
    signal_with(0)?;
    // With a stack shorter by this much, the state is lower by as much; both are multiples of 64.
    let top = LENGTH - STATE.get().wrapping_add(HEADER) % PAGE;
    use_stack(start, top)?;
    // SAFETY: nothing is on that stack between two signals.
    check(unsafe { libc::madvise(start, LENGTH, libc::MADV_DONTNEED) })?;
    signal_with(0)?;
    let header = STATE.get() + HEADER;
    if !header.is_multiple_of(PAGE) {
        let message = format!("the FPU's state has its header at {header:#x}");
        return Err(io::Error::other(message));
    }
    let missing = ptr::with_exposed_provenance_mut(header - PAGE);
    HANDLED.set(0);
    for round in 0..count {
        // SAFETY: nothing is on that stack between two signals.
        check(unsafe { libc::madvise(missing, PAGE, libc::MADV_DONTNEED) })?;
        let value = (cpu << 32) | (round + 1);
        let after = signal_with(value)?;
        if (after, HANDLED.get()) != (value, round + 1) {
            return Err(io::Error::other(format!(
                "signal {round} left {after:#x} of {value:#x} in a register, and {} were handled",
                HANDLED.get()
            )));
        }
    }
    Ok(())
}

/// Has signals handled on this stack.
fn use_stack(start: *mut libc::c_void, length: usize) -> io::Result<()> {
    let stack = libc::stack_t {
        ss_sp: start,
        ss_flags: 0,
        ss_size: length,
    };
    // SAFETY: the stack is this thread's own for ever.
    check(unsafe { libc::sigaltstack(&stack, ptr::null_mut()) }).map(drop)
}

/// Sends the signal with this value in a register of the FPU. Returns the register's value afterwards.
fn signal_with(value: u64) -> io::Result<u64> {
    let process = std::process::id();
    // SAFETY: this call has no effect on memory.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    let after: u64;
    let result: i64;
    // SAFETY: tgkill takes three numbers. All registers that the call or this code changes are declared; the handler
    // runs as one does anywhere.
    unsafe {
        asm!(
            "movq xmm9, {value}",
            "syscall",
            "movq {after}, xmm9",
            value = in(reg) value,
            after = out(reg) after,
            inlateout("rax") libc::SYS_tgkill => result,
            in("rdi") u64::from(process),
            in("rsi") thread,
            in("rdx") i64::from(libc::SIGUSR2),
            out("rcx") _,
            out("r11") _,
            out("xmm9") _,
        );
    }
    match result {
        0 => Ok(after),
        error => Err(io::Error::from_raw_os_error(-error as i32)),
    }
}

extern "C" fn handler(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel gives a handler of this kind a pointer to what it has saved.
    let state = unsafe { (*context).uc_mcontext.fpregs };
    STATE.set(state.expose_provenance());
    HANDLED.set(HANDLED.get() + 1);
    // SAFETY: the register is declared as changed.
    unsafe { asm!("pxor xmm9, xmm9", out("xmm9") _) };
}
