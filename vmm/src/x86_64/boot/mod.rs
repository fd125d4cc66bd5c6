//! Getting a kernel to its entry point.
//!
//! Linux' boot protocol for x86 (`Documentation/arch/x86/boot.rst`): the kernel's file, where it and its
//! initramfs lie in memory, and the descriptors, page tables and parameters that it starts with.

pub mod bzimage;
mod error;
mod firmware;
pub(crate) mod gdt;
mod kernel_cache;
pub(crate) mod last_jump;
mod load;
mod load_address;
mod method;
mod page_tables;
mod params;
mod payload;
mod pvh;

pub use error::LoadError;
pub(crate) use load::{Entry, load};
pub use method::BootMethod;
