//! Answers to traps: who is told of a hit, and how the vCPU gets past the instruction.

pub(crate) mod clock;
pub(crate) mod filter;
pub(crate) mod guest_clock;
mod held;
pub(crate) mod int3;
pub(crate) mod known_modules;
pub(crate) mod merge;
pub(crate) mod missed;
pub(crate) mod module_symbol;
pub(crate) mod observe;
pub(crate) mod of_task;
pub(crate) mod plain;
pub(crate) mod stack;
pub(crate) mod step;
pub(crate) mod stepping;
pub(crate) mod trap;
pub(crate) mod vcpu_stack;
pub(crate) mod watch;
