//! What a Linux kernel's image tells of it, and where the running kernel keeps things.
//!
//! [`Kernel::from_image`] reads a vmlinux: symbols, types, what the kernel patches in its own text.
//! With a guest's memory ([`guest_state::GuestMemory`]), the guest's modules and its own kprobes are
//! found as well. Nothing here needs a probe, does I/O or trusts what it reads.
#![forbid(unsafe_code)]

mod banner;
pub mod blacklist;
pub mod btf;
mod image;
mod image_map;
mod instruction;
mod kernel;
mod kernel_memory;
pub mod kprobes;
pub mod modules;
pub mod percpu;
pub mod symbols;

pub use image::{Image, ImageError};
pub use image_map::ImageMap;
pub use kernel::{Kernel, KernelError};
