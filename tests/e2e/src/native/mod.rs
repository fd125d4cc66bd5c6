//! The emulation against the CPU that the tests run on.
//!
//! Each case is one random instruction with random registers, flags and memory,
//! executed by the CPU in this process and by the engine on a copy. They must
//! agree in registers, flags and memory. Only what user mode can execute is
//! compared; the privileged forms (`cli`, `sti`, `hlt`, IF and IOPL in `popf`)
//! are left to the engine's own tests.

mod case;
mod compare;
mod cpu;
mod random;

#[cfg(test)]
mod tests;

pub use compare::emulation_equals_the_cpu;
