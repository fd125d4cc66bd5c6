//! The times between calls of `KVM_RUN`, taken where the monitor calls the kernel: this program has an `ioctl` of its
//! own, which the linker prefers to the C library's.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_ulong};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::clock;

/// `KVM_RUN`, `_IO(KVMIO, 0x80)` (include/uapi/linux/kvm.h).
pub const KVM_RUN: c_ulong = 0xae80;

static IS_ON: AtomicBool = AtomicBool::new(false);
static TIMES: Mutex<Vec<Time>> = Mutex::new(Vec::new());

/// One time from a `KVM_RUN`'s return to the next call, without the calls of `ioctl` in between.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Ticks of the time stamp counter.
    pub ticks: u64,
    /// How many pairs of readings of the clock the time includes.
    pub readings: u64,
}

/// This thread's time since its last `KVM_RUN`.
#[derive(Debug, Clone, Copy)]
struct Since {
    /// When `KVM_RUN` or the last other call returned.
    returned: u64,
    /// The time before that.
    before: Time,
}

thread_local! {
    static SINCE: Cell<Option<Since>> = const { Cell::new(None) };
}

/// Starts taking times.
pub fn begin() {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    IS_ON.store(true, Ordering::Release);
}

/// Stops taking times, and returns those since [`begin`].
pub fn end() -> Vec<Time> {
    IS_ON.store(false, Ordering::Release);
    std::mem::take(&mut TIMES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Ends the time since the last call, as a call begins.
fn called(is_run: bool) {
    let now = clock::ticks();
    let Some(Since { returned, before }) = SINCE.get() else {
        return;
    };
    let time = Time {
        ticks: before.ticks + (now - returned),
        readings: before.readings + 1,
    };
    if is_run {
        let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
        times.push(time);
    } else {
        SINCE.set(Some(Since {
            returned,
            before: time,
        }));
    }
}

/// Begins the next time, or continues it, as a call has returned.
fn returned(is_run: bool) {
    let nothing = Time {
        ticks: 0,
        readings: 0,
    };
    let before = match (is_run, SINCE.get()) {
        (true, _) => nothing,
        (false, Some(since)) => since.before,
        (false, None) => return,
    };
    let returned = clock::ticks();
    SINCE.set(Some(Since { returned, before }));
}

/// `ioctl` as the C library has it (ioctl(2)), with its time left out.
///
/// # Safety
/// That of the request.
// SAFETY: it does what the C library's function of this name does. That one takes its last argument as
// a variable one, which the calling convention passes in the same register (System V ABI, 3.2.3).
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    let is_timed = IS_ON.load(Ordering::Acquire);
    let is_run = request == KVM_RUN;
    if is_timed {
        called(is_run);
    }
    // SAFETY: the caller's own request with the caller's own argument.
    let result: c_long = unsafe { libc::syscall(libc::SYS_ioctl, file, request, argument) };
    if is_timed {
        returned(is_run);
    }
    // The kernel's answer is an int.
    result as c_int
}
