//! Faults of the code under test: how Linux reports them, and how the execution ends then.

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::OnceLock;

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use crate::steps;
use crate::stub::{FLAGS, SIGNAL};

/// The signals by which Linux reports an exception in user mode.
const SIGNALS: [c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];
/// More than any CPU's state (AMX included) and the handler need.
const STACK: usize = 64 * 1024;

/// Where a fault is recorded, and where execution goes on.
#[derive(Clone, Copy)]
pub struct Exit {
    /// The control page's slots.
    pub slots: *mut u64,
    /// Address of code that ends the execution.
    pub leave: u64,
}

thread_local! {
    static EXIT: Cell<Option<Exit>> = const { Cell::new(None) };
}

/// Makes faults of this thread end at `exit`. With `None` they end the process, as without a
/// handler.
pub fn set_exit(exit: Option<Exit>) {
    EXIT.set(exit);
}

/// A stack for this thread's handlers: the code under test has none.
pub struct SignalStack {
    _memory: Box<[u8]>,
    before: libc::stack_t,
}

impl SignalStack {
    /// Installs the handlers, once, and the stack.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> io::Result<Self> {
        static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
        let installed =
            INSTALLED.get_or_init(|| install().map_err(|e| e.raw_os_error().unwrap_or_default()));
        installed.map_err(io::Error::from_raw_os_error)?;
        let mut memory = vec![0; STACK].into_boxed_slice();
        let new = libc::stack_t {
            ss_sp: memory.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: STACK,
        };
        let mut before = libc::stack_t {
            ss_sp: ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        // SAFETY: the memory is on the heap and outlives its use: `drop` restores the stack before.
        check(unsafe { libc::sigaltstack(&raw const new, &raw mut before) })?;
        Ok(Self {
            _memory: memory,
            before,
        })
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        // SAFETY: it is the stack that was set before, which the code that set it still keeps.
        let _status = unsafe { libc::sigaltstack(&raw const self.before, ptr::null_mut()) };
    }
}

fn install() -> io::Result<()> {
    for signal in SIGNALS {
        // SAFETY: a `sigaction` is valid with all bits zero.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `on_fault` is a handler of the type that SA_SIGINFO asks for.
        check(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) })?;
    }
    Ok(())
}

fn check(status: c_int) -> io::Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

extern "C" fn on_fault(signal: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // Reading a thread-local constant's cell is all that happens outside this thread's own state.
    let Some(exit) = EXIT.get() else {
        // A fault of the test itself: let it happen again and end the process.
        // SAFETY: setting the default action is allowed in a handler.
        let _before = unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    };
    // SAFETY: with SA_SIGINFO the third argument is the interrupted context, ours alone until
    // the handler returns.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    if steps::take(signal, context) {
        return;
    }
    let found = &mut context.uc_mcontext.gregs;
    let at = |index: c_int| found[index as usize] as u64;
    let registers = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    let put = |slot: usize, value: u64| {
        // SAFETY: the slots are the control page, mapped writable while the exit is set.
        unsafe { exit.slots.wrapping_add(slot).write_volatile(value) };
    };
    for (slot, register) in registers.into_iter().enumerate() {
        put(slot, at(register));
    }
    put(FLAGS, at(libc::REG_EFL));
    put(SIGNAL, signal as u64);
    put(SIGNAL + 1, at(libc::REG_RIP));
    put(SIGNAL + 2, at(libc::REG_CR2));
    put(SIGNAL + 3, at(libc::REG_ERR));
    put(SIGNAL + 4, at(libc::REG_TRAPNO));
    found[libc::REG_RIP as usize] = exit.leave.cast_signed();
    found[libc::REG_EFL as usize] = 0x202;
}
