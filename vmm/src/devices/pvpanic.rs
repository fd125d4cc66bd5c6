//! pvpanic: the port where a guest's kernel tells that it has panicked (docs/specs/pvpanic.rst of
//! QEMU).

use vm_device::{
    DevicePio,
    bus::{PioAddress, PioAddressOffset},
};

use crate::devices::guest_end::GuestEnd;

/// Event bit 0, the only one that this device knows: the guest has panicked.
const PANICKED: u8 = 1 << 0;

/// The device's only register.
pub(crate) struct PvPanic(pub(crate) GuestEnd);

impl DevicePio for PvPanic {
    /// The events that the device knows.
    fn pio_read(&self, _: PioAddress, _: PioAddressOffset, data: &mut [u8]) {
        if let Some(value) = data.first_mut() {
            *value = PANICKED;
        }
    }

    fn pio_write(&self, _: PioAddress, _: PioAddressOffset, data: &[u8]) {
        if data.first().is_some_and(|value| value & PANICKED != 0) {
            self.0.panic();
        }
    }
}
