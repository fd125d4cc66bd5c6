//! Getting a kernel to its entry point.

pub mod bzimage;
pub(crate) mod gdt;
mod load;
mod page_tables;
mod params;
mod payload;
mod placement;

pub(crate) use load::load;
pub use load::{BootMethod, LoadError};
