//! The processor's part of a vCPU: its registers as KVM has them, the exits that a
//! debugger is the reason of, and how an exception is given to the guest.

pub(crate) mod capabilities;
pub(crate) mod clock;
pub(crate) mod context;
mod deliver;
mod events;
pub(crate) mod exit;
pub(crate) mod fpu;
pub(crate) mod guest_debug;
pub(crate) mod msr;
pub(crate) mod registers;
pub(crate) mod reinject;
