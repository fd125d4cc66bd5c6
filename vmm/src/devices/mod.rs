//! Devices of the guest, and the bus that they are attached to.
//!
//! A device knows its registers and not where they are. A new device is a file here that implements
//! `vm_device`'s `DevicePio` or `DeviceMmio`, its addresses in `x86_64/layout.rs`, a line in
//! `x86_64/platform.rs` that attaches it, and its description for the guest in `x86_64/acpi.rs`.

pub(crate) mod bus;
pub(crate) mod console;
pub(crate) mod end_register;
pub(crate) mod events;
pub(crate) mod guest_end;
pub(crate) mod pci;
pub(crate) mod serial;
pub(crate) mod virtio;
