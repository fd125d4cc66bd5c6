//! What the monitor knows of x86-64 and of the PC around it.
//!
//! The rest of the crate (the stop protocol, the run loop, guest memory, devices, the console) uses
//! this folder and names no register. Another architecture has to supply the same:
//!
//! - [`layout`]: where memory, devices and the monitor's own structures are in the guest's physical
//!   address space;
//! - [`boot`]: the kernel's file format and boot protocol (Linux `Documentation/arch/x86/boot.rst`). It
//!   is here as a whole: a bzImage, its setup header and the state at its entry are x86's. The
//!   compressions of a payload would serve another kernel too, but have no other user;
//! - [`acpi`]: the tables that tell the guest of its processors and devices;
//! - [`chips`]: interrupt controllers and timers;
//! - [`events`]: interrupts by message, in KVM's table of interrupt numbers;
//! - [`platform`]: which devices there are, and where;
//! - [`cpu`]: what a vCPU starts with;
//! - [`prefetch`]: prefetching memory before it is needed;
//! - [`vcpu`]: registers, debug registers, exceptions and events of a vCPU that has left guest mode,
//!   behind `guest_state`'s [`Vcpu`](guest_state::Vcpu).
//!
//! `guest_state::x86_64` has the counterpart that the probe engine uses as well.

pub(crate) mod acpi;
pub mod boot;
pub(crate) mod chips;
pub(crate) mod cpu;
pub(crate) mod events;
pub(crate) mod layout;
mod numa;
pub(crate) mod platform;
pub(crate) mod prefetch;
pub(crate) mod vcpu;
