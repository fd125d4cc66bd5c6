//! The ports through which a guest switches itself off or resets.

use crate::{
    ending::Ending,
    x86_64::{acpi, layout},
};

/// What the FADT tells the guest to write to the reset register; the value
/// that resets a PC through the same port.
pub(crate) const RESET_VALUE: u8 = 0x06;
/// The keyboard controller's "pulse the reset line".
const I8042_RESET: u8 = 0xfe;
/// pvpanic's event bit 0: the guest has panicked (docs/specs/pvpanic.rst of QEMU).
pub(crate) const PVPANIC_PANICKED: u8 = 1 << 0;

/// `SLP_EN` of the sleep control register (ACPI 6.5, table 4.18).
const SLEEP_ENABLE: u8 = 1 << 5;
/// Where `SLP_TYP` begins in it, and its three bits.
const SLEEP_TYPE_SHIFT: u8 = 2;
const SLEEP_TYPE_MASK: u8 = 0b111;

/// Sleep, reset and keyboard-controller reset registers.
#[derive(Debug)]
pub(crate) struct PowerPorts;

impl PowerPorts {
    /// The byte read from `port`, if it is one of these.
    pub(crate) fn read(&self, port: u16) -> Option<u8> {
        let sleep_status = layout::SLEEP_CONTROL_PORT + 1;
        [layout::SLEEP_CONTROL_PORT, sleep_status, layout::RESET_PORT]
            .contains(&port)
            .then_some(0)
    }

    /// How the guest ends by writing `value` to `port`, if it does.
    pub(crate) fn write(&self, port: u16, value: u8) -> Option<Ending> {
        match port {
            layout::SLEEP_CONTROL_PORT
                if value & SLEEP_ENABLE != 0
                    && value >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK == acpi::S5_SLEEP_TYPE =>
            {
                Some(Ending::PowerOff)
            }
            // Bit 2 of the register starts the reset; bit 1 alone only selects its kind.
            layout::RESET_PORT if value & 1 << 2 != 0 => Some(Ending::Reset),
            layout::I8042_COMMAND_PORT if value == I8042_RESET => Some(Ending::Reset),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_ends_the_guest_in_its_own_way() {
        let cases = [
            (
                layout::SLEEP_CONTROL_PORT,
                5 << 2 | 1 << 5,
                Some(Ending::PowerOff),
            ),
            (layout::SLEEP_CONTROL_PORT, 5 << 2, None),
            (layout::SLEEP_CONTROL_PORT, 3 << 2 | 1 << 5, None),
            (layout::RESET_PORT, RESET_VALUE, Some(Ending::Reset)),
            (layout::RESET_PORT, 0x02, None),
            (layout::I8042_COMMAND_PORT, 0xfe, Some(Ending::Reset)),
            (layout::I8042_COMMAND_PORT, 0xae, None),
            (0x80, 0x31, None),
        ];
        for (port, value, ending) in cases {
            assert_eq!(
                PowerPorts.write(port, value),
                ending,
                "{value:#x} to {port:#x}"
            );
        }
    }
}
