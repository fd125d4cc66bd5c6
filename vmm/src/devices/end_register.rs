//! The registers through which a guest switches itself off, resets, or tells that it has panicked.

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
/// pvpanic's event bit 0: the guest has panicked (docs/specs/pvpanic.rst of QEMU).
const PVPANIC_PANICKED: u8 = 1 << 0;

/// Sleep type that the guest is told for "soft off", ACPI's state S5.
pub(crate) const S5_SLEEP_TYPE: u8 = 5;
/// `SLP_EN` of the sleep control register (ACPI 6.5, table 4.18).
const SLEEP_ENABLE: u8 = 1 << 5;
/// Where `SLP_TYP` begins in it, and its three bits.
const SLEEP_TYPE_SHIFT: u8 = 2;
const SLEEP_TYPE_MASK: u8 = 0b111;

/// A register of one byte that always reads the same, and that ends the guest when certain values are
/// written to it. Ports of the device after the first read the same and ignore writes.
pub(crate) struct EndRegister {
    /// The value that is read.
    value: u8,
    /// Returns true if a written value ends the guest.
    ends: fn(u8) -> bool,
    /// Ends the guest.
    how: fn(&GuestEnd),
    end: GuestEnd,
}

impl EndRegister {
    /// ACPI's sleep control register; the sleep status register follows (ACPI 6.5, 4.8.3.7).
    pub(crate) fn sleep_control(end: &GuestEnd) -> Self {
        let soft_off = |value: u8| {
            value & SLEEP_ENABLE != 0
                && value >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK == S5_SLEEP_TYPE
        };
        Self::new(0, soft_off, GuestEnd::power_off, end)
    }

    /// A PC's reset control register.
    pub(crate) fn reset_control(end: &GuestEnd) -> Self {
        Self::new(0, |value| value & RESET_CPU != 0, GuestEnd::reset, end)
    }

    /// The command port of a keyboard controller that has no keyboard: nothing is in its buffers.
    pub(crate) fn keyboard_command(end: &GuestEnd) -> Self {
        Self::new(0, |value| value == I8042_RESET, GuestEnd::reset, end)
    }

    /// pvpanic, where the guest's kernel tells that it has panicked. The events that the device knows
    /// are read from it.
    pub(crate) fn pvpanic(end: &GuestEnd) -> Self {
        let panicked = |value| value & PVPANIC_PANICKED != 0;
        Self::new(PVPANIC_PANICKED, panicked, GuestEnd::panic, end)
    }

    fn new(value: u8, ends: fn(u8) -> bool, how: fn(&GuestEnd), end: &GuestEnd) -> Self {
        let end = end.clone();
        Self {
            value,
            ends,
            how,
            end,
        }
    }
}

impl DevicePio for EndRegister {
    fn pio_read(&self, _: PioAddress, _: PioAddressOffset, data: &mut [u8]) {
        if let Some(first) = data.first_mut() {
            *first = self.value;
        }
    }

    fn pio_write(&self, _: PioAddress, offset: PioAddressOffset, data: &[u8]) {
        if offset == 0 && data.first().is_some_and(|value| (self.ends)(*value)) {
            (self.how)(&self.end);
        }
    }
}
