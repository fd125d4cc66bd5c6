//! Kernel probes in the text of a guest.
//!
//! The monitor gives the [`engine::Engine`] its guest's memory ([`guest_state::GuestMemory`]) and, at
//! a trap, one stopped vCPU ([`guest_state::Vcpu`]); the answer is a [`guest_state::Action`]. What the
//! kernel's image tells comes from [`guest_kernel`]. Nothing here knows KVM or does I/O.
#![forbid(unsafe_code)]

pub mod action;
pub mod arena;
pub mod calls;
pub mod condition;
pub mod detour;
pub mod emulate;
pub mod engine;
pub mod error;
pub mod event;
pub mod fetch;
pub mod filter;
pub mod percpu;
pub mod probe;
pub mod relocate;
pub mod ring;
pub mod value;

mod insn;
