//! The engine's emulation and relocation against the CPU that the tests run on.
//!
//! A case is one instruction with registers, flags and memory to start from. The CPU executes it in
//! this process. Either the engine emulates it on a copy, or the CPU executes the engine's copy of
//! it for another address. The results must agree in registers, flags and memory.
//!
//! Only what user mode can execute is compared: [`forms::unfit`] names the rest.

pub mod case;
pub mod compare;
pub mod cpu;
pub mod draw;
pub mod forms;
pub mod jump;
pub mod kernel;
pub mod registers;
pub mod survey;

mod aim;
mod flags;
mod signals;
#[cfg_attr(not(test), expect(dead_code, reason = "tests alone step"))]
mod steps;
mod stub;

#[cfg(test)]
mod tests;
