//! Which function called which: the kernel's stacks, unwound from outside.
//!
//! Distributions build their kernels without frame pointers, but with ORC tables, which say for each place of
//! the code where on the stack the caller is. The kernel prints its own traces by them. Sources:
//! `Documentation/arch/x86/orc-unwinder.rst`, `arch/x86/kernel/unwind_orc.c`.
//!
//! [`Unwinder`] unwinds by the tables of a kernel's image and of its loaded modules, or by frame pointers in a kernel
//! that has none. The caller passes the function that reads the stack, so the stack can be the guest's memory, or what
//! was copied of it ([`CapturedStack`]). Neither tables nor stacks are trusted: a trace always ends.
//!
//! Unlike the kernel, the unwinder doesn't find out which addresses are the stacks of this CPU or task. For compiled
//! BPF programs it assumes a frame pointer, as the kernel does.

mod entry;
mod error;
mod format;
mod frame_pointer;
mod ftrace;
mod modules;
mod orc;
mod pt_regs;
mod replaced;
#[cfg(test)]
mod tests;
mod trace;
mod unwinder;
mod walk;

pub use entry::{Base, FrameType, OrcEntry, Register};
pub use error::OrcError;
pub use modules::ModuleOrcError;
pub use orc::Orc;
pub use trace::{
    CapturedStack, FindForeign, Foreign, MAX_FRAMES, ReadWord, StackTrace, Surroundings, TraceEnd,
};
pub use unwinder::Unwinder;
