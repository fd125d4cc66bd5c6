//! Kernel probes in the text of a guest, seen through two small traits.
//!
//! The monitor gives the [`engine::Engine`] its guest's memory ([`guest::GuestMemory`]) and, at
//! a trap, one stopped vCPU ([`vcpu::Vcpu`]); the answer is an [`engine::Action`]. Nothing here
//! knows KVM or does I/O.
#![forbid(unsafe_code)]

pub mod arena;
mod banner;
pub mod blacklist;
pub mod btf;
pub mod calls;
pub mod condition;
pub mod detour;
pub mod emulate;
pub mod engine;
pub mod error;
pub mod event;
pub mod image_map;
pub mod kernel;
pub mod kprobes;
pub mod modules;
pub mod percpu;
pub mod probe;
pub mod relocate;
pub mod ring;
pub mod symbols;

mod insn;
