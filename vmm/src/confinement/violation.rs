//! What becomes of a thread that makes a system call that its filter forbids.

use std::sync::{Once, OnceLock};

use libc::{c_int, c_void, siginfo_t};
use vmm_sys_util::signal::register_signal_handler;

/// Length of a thread's name with the zero behind it (`TASK_COMM_LEN`).
const NAME_LEN: usize = 16;

/// What a signal tells of a forbidden call (asm-generic/siginfo.h, `_sigsys`).
#[repr(C)]
struct ForbiddenCall {
    signal: c_int,
    error: c_int,
    code: c_int,
    /// The instruction's address.
    address: usize,
    number: c_int,
}

/// What is written before and behind the report of a call.
static FRAME: OnceLock<[String; 2]> = OnceLock::new();

/// Sets what is written before and behind the report of a forbidden call. Only the first call of this function counts.
/// The report is a line of text, without quotation marks or backslashes.
pub fn frame_violations(frame: [String; 2]) {
    let _the_first_holds = FRAME.set(frame);
}

/// Installs the signal's handler, once a process.
pub(super) fn install_handler() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        if let Err(error) = register_signal_handler(libc::SIGSYS, on_forbidden_call) {
            tracing::error!("no handler tells of forbidden system calls: {error}");
        }
    });
}

/// Says on standard error which thread has made which call, and ends the process by the same signal. Only what is
/// safe in a signal handler is done (signal-safety(7)).
extern "C" fn on_forbidden_call(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a siginfo_t, whose beginning this is for SIGSYS.
    let call = unsafe { &*info.cast::<ForbiddenCall>() }.number;
    let mut name = [0_u8; NAME_LEN];
    // SAFETY: PR_GET_NAME writes at most 16 bytes to the address.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name_len = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
    let mut digits = [0_u8; 12];
    // A read of memory that is never written again.
    let [before, behind] = FRAME
        .get()
        .map_or(["", ""], |[before, behind]| [before, behind]);
    for part in [
        before.as_bytes(),
        b"vmprobed: the thread ".as_slice(),
        &name[..name_len],
        b" has made system call ",
        decimal(call, &mut digits),
        b", which its filter forbids; the VM ends. This is a bug of vmprobe, or an attack of the guest's",
        behind.as_bytes(),
        b"\n",
    ] {
        // SAFETY: the pointer and the length are those of a slice. Nothing helps if it can't be written.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: it involves no memory.
    unsafe { libc::signal(libc::SIGSYS, libc::SIG_DFL) };
    // Blocked while this runs, so it comes when this returns.
    // SAFETY: it involves no memory.
    unsafe { libc::raise(libc::SIGSYS) };
}

/// A number's digits, at the end of `digits`.
fn decimal(number: c_int, digits: &mut [u8; 12]) -> &[u8] {
    let mut left = number.unsigned_abs();
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_in_digits() {
        for number in [0, 7, 59, 435, c_int::MAX] {
            assert_eq!(decimal(number, &mut [0; 12]), number.to_string().as_bytes());
        }
    }
}
