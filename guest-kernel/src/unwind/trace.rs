//! What unwinding gives, and what it needs from outside.

use guest_state::GuestVirtAddr;

/// The most addresses of a trace. No stack of a kernel holds as many.
pub const MAX_FRAMES: usize = 1024;

/// The functions that were being called, innermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackTrace {
    /// Where the code was, and then the addresses that it and its callers return to, as the kernel's own
    /// traces have them (`arch_stack_walk` in `arch/x86/kernel/stacktrace.c`). Where an interrupt came
    /// in between, the address of the interrupted instruction.
    pub addresses: Vec<GuestVirtAddr>,
    /// Why there are no more.
    pub end: TraceEnd,
    /// True if some caller was found by a frame pointer, in code that may not have one. From there on all may be wrong.
    pub guessed: bool,
}

/// Why a trace ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceEnd {
    /// All callers are there: user space called the outermost one, or nothing did.
    Complete,
    /// There are as many as were wanted.
    Full,
    /// The stack can't be read any further. A captured piece of it ends here.
    NotThere,
    /// The kernel's tables don't tell how to go on from there. Some assembly has no callers.
    NoEntry,
    /// A word in the place of a return address is none.
    NotText,
    /// The callers go round in a circle, or the stack makes no sense.
    Circular,
    /// A caller's stack is only in a register whose value isn't known there.
    NoRegister,
}

/// What an address stands for that isn't in the kernel's code, but in code that the unwinder's caller has inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// A copy of the kernel's code, or what stands in for it.
    Copy {
        /// The kernel's instruction that would come next if nothing had been inserted.
        original: GuestVirtAddr,
        /// How many bytes the inserted code has pushed on the stack at that place.
        pushed: u64,
    },
    /// Code of its own, which has used registers, but not RBP.
    Inserted {
        /// The kernel's instruction that comes next.
        original: GuestVirtAddr,
        /// The stack pointer there.
        sp: GuestVirtAddr,
    },
    /// It replaced a return address on the stack.
    Returned {
        /// What was there.
        original: GuestVirtAddr,
    },
}

/// Reads the 8 bytes at an address of the kernel's; `None` where nothing can be read.
pub type ReadWord<'a> = dyn FnMut(GuestVirtAddr) -> Option<u64> + 'a;

/// Finds what an address stands for: see [`Surroundings::foreign`].
pub type FindForeign<'a> =
    dyn FnMut(GuestVirtAddr, GuestVirtAddr, &mut ReadWord<'_>) -> Option<Foreign> + 'a;

/// What a walk of a stack reads.
pub struct Surroundings<'a> {
    /// How the stack is read, and what of the task belongs to it.
    pub memory: &'a mut ReadWord<'a>,
    /// How the kernel's own data is read, as it is now.
    pub kernel: &'a mut ReadWord<'a>,
    /// What an address stands for that isn't in the kernel's code. The second address is where that return
    /// address is on the stack, or was before it was returned to: 8 below the stack pointer.
    pub foreign: &'a mut FindForeign<'a>,
    /// The `struct task_struct` of the task whose stack it is. With it, return addresses that the kernel's
    /// own kretprobes and function graph tracer replaced are found.
    pub task: Option<GuestVirtAddr>,
}

/// A piece of a stack as it was copied.
#[derive(Debug, Clone, Copy)]
pub struct CapturedStack<'a> {
    /// Where it was.
    pub start: GuestVirtAddr,
    /// What was there.
    pub bytes: &'a [u8],
}

impl CapturedStack<'_> {
    /// Returns the 8 bytes that were at an address; `None` outside the piece.
    pub fn read(&self, at: GuestVirtAddr) -> Option<u64> {
        let offset = usize::try_from(at.offset_from(self.start)?).ok()?;
        let word = self.bytes.get(offset..)?.first_chunk()?;
        Some(u64::from_le_bytes(*word))
    }
}
