//! Devices with a driver that follows no rules.

use crate::input::Input;

/// Checks that whatever a guest's driver does to a device, the monitor goes on, a reset restores a working device, and
/// on the host only what the guest was given changes.
///
/// The bytes: the kind of the device, then what the driver does.
///
/// # Panics
/// If that doesn't hold.
pub fn devices(bytes: &[u8]) {
    let mut input = Input(bytes);
    let kind = input.byte();
    vmm::testing::hostile_driver(kind, input.0);
}
