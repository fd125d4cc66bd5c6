//! Detours on the CPU that this runs on: the code that jump probes lead to, executed in user mode.
//!
//! [`blocks`] stands for a guest's memory: per-CPU variables, the vCPUs' blocks, and rings. The base of GS tells
//! detours which vCPU they are on, as in a kernel.

pub mod blocks;
pub mod draw;
pub mod function;
pub mod image;
pub mod ram;
pub mod region;
pub mod single;
pub mod text;

mod memory;
