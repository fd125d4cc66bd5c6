//! Single steps of the code under test: the address of each of its instructions, and the stack at that time.

use std::cell::Cell;
use std::ops::Range;
use std::ptr;

use libc::{c_int, ucontext_t};

/// The trap flag of RFLAGS: an exception follows each instruction (SDM vol. 3B, 18.3.1.4).
const TRAP_FLAG: i64 = 1 << 8;
/// Words of the stack that are kept of each step.
const WORDS: usize = 512;
/// The most steps that are kept.
const MOST: usize = 20_000;

thread_local! {
    static STEPS: Cell<*mut Steps> = const { Cell::new(ptr::null_mut()) };
}

/// An instruction about to be executed.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its address.
    pub rip: u64,
    /// RSP then.
    pub rsp: u64,
    stack: Vec<u64>,
}

impl Step {
    /// The word on the stack at an address, if it was kept.
    pub fn read(&self, at: u64) -> Option<u64> {
        let bytes = at.checked_sub(self.rsp)?;
        self.stack.get((bytes / 8) as usize).copied()
    }
}

/// The steps of a thread.
pub struct Steps {
    code: Range<u64>,
    /// Where the stack ends.
    end: u64,
    is_inside: bool,
    seen: Vec<Step>,
}

/// Records this thread's steps in `code` while `execute` runs, with a stack that ends at `end`. They begin when the
/// thread comes to `code` with the trap flag set, and end when it leaves `code`.
pub fn record(code: Range<u64>, end: u64, execute: impl FnOnce()) -> Vec<Step> {
    let mut steps = Steps {
        code,
        end,
        is_inside: false,
        seen: Vec::with_capacity(MOST),
    };
    STEPS.set(&raw mut steps);
    execute();
    STEPS.set(ptr::null_mut());
    assert!(steps.seen.len() < MOST, "too many steps");
    steps.seen
}

/// Records a step and returns true, if the signal is one. It runs in the handler of an exception in the code under
/// test, so it interrupts no code of Rust's.
pub fn take(signal: c_int, context: &mut ucontext_t) -> bool {
    let registers = &mut context.uc_mcontext.gregs;
    let [rip, rsp] = [libc::REG_RIP, libc::REG_RSP].map(|index| registers[index as usize] as u64);
    let flags = &mut registers[libc::REG_EFL as usize];
    let steps = STEPS.get();
    if signal != libc::SIGTRAP || *flags & TRAP_FLAG == 0 || steps.is_null() {
        return false;
    }
    // SAFETY: `record` has set it to a value that lives until `record` resets it, and waits meanwhile.
    let steps = unsafe { &mut *steps };
    if !steps.code.contains(&rip) {
        if steps.is_inside {
            *flags &= !TRAP_FLAG;
        }
        return true;
    }
    steps.is_inside = true;
    if steps.seen.len() < MOST {
        let words = steps.end.saturating_sub(rsp) as usize / 8;
        // SAFETY: the caller of `record` says that the stack is readable up to its end.
        let stack = unsafe { std::slice::from_raw_parts(rsp as *const u64, words.min(WORDS)) };
        let stack = stack.to_vec();
        steps.seen.push(Step { rip, rsp, stack });
    }
    true
}
