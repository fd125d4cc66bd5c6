//! Devices under a driver that keeps to no rules.

use crate::input::Input;

/// Whatever a guest's driver does to a device: the monitor goes on, a reset brings back a device that serves, and
/// nothing changes on the host but what the guest has been given.
///
/// The bytes: the kind of the device, then what the driver does.
///
/// # Panics
/// When that doesn't hold.
pub fn devices(bytes: &[u8]) {
    let mut input = Input(bytes);
    let kind = input.byte();
    vmm::testing::hostile_driver(kind, input.0);
}
