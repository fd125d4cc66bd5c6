//! The registers through which a guest switches itself off or resets.

use vm_device::{
    DevicePio,
    bus::{PioAddress, PioAddressOffset},
};

use crate::devices::guest_end::GuestEnd;

/// What the FADT tells the guest to write to the reset register; the value that resets a PC through
/// the same port.
pub(crate) const RESET_VALUE: u8 = 0x06;
/// Bit of the reset register that starts the reset; bit 1 alone only selects its kind.
const RESET_CPU: u8 = 1 << 2;

/// The keyboard controller's "pulse the reset line".
const I8042_RESET: u8 = 0xfe;

/// Sleep type that the guest is told for "soft off", ACPI's state S5.
pub(crate) const S5_SLEEP_TYPE: u8 = 5;
/// `SLP_EN` of the sleep control register (ACPI 6.5, table 4.18).
const SLEEP_ENABLE: u8 = 1 << 5;
/// Where `SLP_TYP` begins in it, and its three bits.
const SLEEP_TYPE_SHIFT: u8 = 2;
const SLEEP_TYPE_MASK: u8 = 0b111;

/// ACPI's sleep control register, and the sleep status register after it (ACPI 6.5, 4.8.3.7).
pub(crate) struct SleepRegisters(pub(crate) GuestEnd);

impl DevicePio for SleepRegisters {
    fn pio_read(&self, _: PioAddress, _: PioAddressOffset, data: &mut [u8]) {
        read_zero(data);
    }

    fn pio_write(&self, _: PioAddress, offset: PioAddressOffset, data: &[u8]) {
        let soft_off = |value: &u8| {
            value & SLEEP_ENABLE != 0
                && value >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK == S5_SLEEP_TYPE
        };
        if offset == 0 && data.first().is_some_and(soft_off) {
            self.0.power_off();
        }
    }
}

/// A PC's reset control register.
pub(crate) struct ResetRegister(pub(crate) GuestEnd);

impl DevicePio for ResetRegister {
    fn pio_read(&self, _: PioAddress, _: PioAddressOffset, data: &mut [u8]) {
        read_zero(data);
    }

    fn pio_write(&self, _: PioAddress, _: PioAddressOffset, data: &[u8]) {
        if data.first().is_some_and(|value| value & RESET_CPU != 0) {
            self.0.reset();
        }
    }
}

/// The command port of a keyboard controller that has no keyboard.
pub(crate) struct KeyboardController(pub(crate) GuestEnd);

impl DevicePio for KeyboardController {
    /// Its status: nothing is in its buffers.
    fn pio_read(&self, _: PioAddress, _: PioAddressOffset, data: &mut [u8]) {
        read_zero(data);
    }

    fn pio_write(&self, _: PioAddress, _: PioAddressOffset, data: &[u8]) {
        if data.first() == Some(&I8042_RESET) {
            self.0.reset();
        }
    }
}

/// A register of one byte that is 0.
fn read_zero(data: &mut [u8]) {
    if let Some(value) = data.first_mut() {
        *value = 0;
    }
}
