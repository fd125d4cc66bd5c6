//! Reads what a Linux kernel's image says about the kernel, and finds structures of the running kernel.
//!
//! [`Kernel::from_image`] reads a vmlinux: symbols, types, what the kernel patches in its own text.
//! With a guest's memory ([`guest_state::GuestMemory`]) it also finds the guest's modules and the guest's
//! kprobes. The crate needs no probe, does no I/O and trusts nothing that it reads.
#![forbid(unsafe_code)]

mod banner;
pub mod blacklist;
pub mod btf;
mod build_id;
pub mod clock;
pub mod context;
mod file_segments;
mod image;
mod image_map;
mod instruction;
mod int3s;
mod kernel;
mod kernel_memory;
pub mod kprobes;
pub mod modules;
mod moved;
pub mod percpu;
mod relocations;
pub mod symbols;
pub mod unwind;

pub use build_id::BuildId;
pub use image::{Image, ImageError};
pub use image_map::ImageMap;
pub use int3s::Int3s;
pub use kernel::{Kernel, KernelError};
pub use moved::{Move, MoveError};
