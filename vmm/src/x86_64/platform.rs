//! Which devices a guest has, and where: those of a PC, as [`acpi`](super::acpi) describes them.

use std::sync::Arc;

use crate::{
    devices::{
        bus::{Bus, BusError},
        end_register::EndRegister,
        guest_end::GuestEnd,
        pci::{ConfigAddressPort, ConfigDataPort, PciFunction, PciRoot},
        serial::SerialPort,
    },
    x86_64::layout,
};

/// Attaches all devices to a bus. `end` is how they end the guest; there is a PCI bus if it has
/// `functions`.
///
/// # Errors
/// See [`BusError`].
pub(crate) fn bus(
    serial: SerialPort,
    end: &GuestEnd,
    functions: Vec<Arc<dyn PciFunction>>,
) -> Result<Bus, BusError> {
    let mut bus = Bus::default();
    bus.attach_ports(layout::COM1_PORT, layout::COM1_PORTS, Arc::new(serial))?;
    for (port, count, register) in [
        (layout::PVPANIC_PORT, 1, EndRegister::pvpanic(end)),
        (
            layout::SLEEP_CONTROL_PORT,
            2,
            EndRegister::sleep_control(end),
        ),
        (layout::RESET_PORT, 1, EndRegister::reset_control(end)),
        (
            layout::I8042_COMMAND_PORT,
            1,
            EndRegister::keyboard_command(end),
        ),
    ] {
        bus.attach_ports(port, count, Arc::new(register))?;
    }
    if !functions.is_empty() {
        attach_pci(&mut bus, functions)?;
    }
    Ok(bus)
}

fn attach_pci(bus: &mut Bus, functions: Vec<Arc<dyn PciFunction>>) -> Result<(), BusError> {
    let (window, len) = (layout::PCI_WINDOW.into(), layout::PCI_WINDOW_LEN.into());
    let root = PciRoot::new(functions, window);
    // The device has one port, as the reset register is at the next. A word written to the port is
    // the device's.
    let address = Arc::new(ConfigAddressPort(Arc::clone(&root)));
    bus.attach_ports(layout::PCI_CONFIG_ADDRESS_PORT, 1, address)?;
    let data = Arc::new(ConfigDataPort(Arc::clone(&root)));
    bus.attach_ports(layout::PCI_CONFIG_DATA_PORT, 4, data)?;
    bus.attach_memory(window, len, root)
}

#[cfg(test)]
mod tests {
    use vmm_sys_util::eventfd::EventFd;

    use super::*;
    use crate::{
        devices::{console::Console, end_register::RESET_VALUE},
        ending::{EndSignal, Ending},
    };

    fn guest() -> (Bus, Arc<Console>, Arc<EndSignal>) {
        let (console, signal) = (Arc::new(Console::default()), Arc::new(EndSignal::default()));
        let end = GuestEnd::new(Arc::clone(&console), Arc::clone(&signal));
        let line = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let serial = SerialPort::new(line, &console, end.clone());
        (bus(serial, &end, Vec::new()).unwrap(), console, signal)
    }

    fn print(bus: &Bus, text: &str) {
        bus.port_write(layout::COM1_PORT, text.as_bytes());
    }

    fn read(bus: &Bus, port: u16) -> [u8; 2] {
        let mut data = [0; 2];
        bus.port_read(port, &mut data);
        data
    }

    #[test]
    fn each_port_ends_the_guest_in_its_own_way() {
        let no_reason = "no reason on the console".to_owned();
        let cases = [
            (
                layout::SLEEP_CONTROL_PORT,
                5 << 2 | 1 << 5,
                Some(Ending::PowerOff),
            ),
            (layout::SLEEP_CONTROL_PORT, 5 << 2, None),
            (layout::SLEEP_CONTROL_PORT, 3 << 2 | 1 << 5, None),
            (layout::SLEEP_CONTROL_PORT + 1, 5 << 2 | 1 << 5, None),
            (layout::RESET_PORT, RESET_VALUE, Some(Ending::Reset)),
            (layout::RESET_PORT, 0x02, None),
            (layout::I8042_COMMAND_PORT, 0xfe, Some(Ending::Reset)),
            (layout::I8042_COMMAND_PORT, 0xae, None),
            (
                layout::PVPANIC_PORT,
                1,
                Some(Ending::Panic { reason: no_reason }),
            ),
            (layout::PVPANIC_PORT, 2, None),
            (0x80, 0x31, None),
        ];
        for (port, value, ending) in cases {
            let (bus, _, signal) = guest();
            bus.port_write(port, &[value]);
            assert_eq!(signal.get(), ending, "{value:#x} to {port:#x}");
        }
    }

    #[test]
    fn registers_read_as_a_device_at_rest() {
        let (bus, ..) = guest();
        for (port, value) in [
            (layout::SLEEP_CONTROL_PORT, 0),
            (layout::SLEEP_CONTROL_PORT + 1, 0),
            (layout::RESET_PORT, 0),
            (layout::I8042_COMMAND_PORT, 0),
            (layout::PVPANIC_PORT, 1),
            (layout::I8042_COMMAND_PORT - 4, 0xff),
        ] {
            assert_eq!(read(&bus, port), [value, 0xff], "{port:#x}");
        }
        // Line status, read twice by an access of two bytes: the transmitter is empty.
        assert_eq!(read(&bus, layout::COM1_PORT + 5), [0x60; 2]);
    }

    #[test]
    fn a_panic_on_the_console_is_the_reason_of_the_end() {
        const PANIC: &str = "Kernel panic - not syncing: VFS\n";
        let panic = Some(Ending::Panic {
            reason: "VFS".to_owned(),
        });
        let (bus, console, signal) = guest();
        print(&bus, PANIC);
        assert_eq!((console.saw_panic(), signal.get()), (true, None));
        bus.port_write(layout::RESET_PORT, &[RESET_VALUE]);
        assert_eq!(signal.get(), panic);

        let (bus, _, signal) = guest();
        print(&bus, PANIC);
        print(&bus, "---[ end Kernel panic - not syncing: VFS ]---\n");
        assert_eq!(signal.get(), panic);
    }
}
