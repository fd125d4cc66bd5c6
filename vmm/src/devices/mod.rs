//! Devices of the guest, and the bus that finds them by I/O port.

pub(crate) mod console;
pub(crate) mod power;
pub(crate) mod serial;

use std::sync::Arc;

use crate::{
    devices::{console::Console, power::PowerPorts, serial::SerialPort},
    ending::{EndSignal, Ending},
    x86_64::layout,
};

/// All devices behind I/O ports. Memory-mapped ones there are none: reads give
/// all ones and writes are dropped, as on a PC's empty bus.
#[derive(Debug)]
pub(crate) struct Devices {
    serial: SerialPort,
    power: PowerPorts,
    end: Arc<EndSignal>,
    console: Arc<Console>,
}

impl Devices {
    pub(crate) fn new(serial: SerialPort, console: Arc<Console>, end: Arc<EndSignal>) -> Self {
        Self {
            serial,
            power: PowerPorts,
            end,
            console,
        }
    }

    /// A guest's `in`: fills `data`, one access of `data.len()` bytes or a
    /// string of byte accesses.
    pub(crate) fn port_read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        match port {
            layout::COM1_PORT..=layout::COM1_PORT_LAST => {
                let register = (port - layout::COM1_PORT) as u8;
                data.fill_with(|| self.serial.read(register));
            }
            layout::PVPANIC_PORT => data[0] = power::PVPANIC_PANICKED,
            // Nothing in the keyboard controller's buffers.
            layout::I8042_COMMAND_PORT => data[0] = 0,
            _ => {
                if let Some(value) = self.power.read(port) {
                    data[0] = value;
                }
            }
        }
    }

    /// A guest's `out`.
    pub(crate) fn port_write(&self, port: u16, data: &[u8]) {
        match port {
            layout::COM1_PORT..=layout::COM1_PORT_LAST => {
                let register = (port - layout::COM1_PORT) as u8;
                for &value in data {
                    self.serial.write(register, value);
                }
                if let Some(reason) = self.console.finished_panic() {
                    self.end.end(Ending::Panic { reason });
                }
            }
            layout::PVPANIC_PORT if data[0] & power::PVPANIC_PANICKED != 0 => {
                self.end.end(Ending::Panic {
                    reason: self.console.panic_reason(),
                });
            }
            _ => match self.power.write(port, data[0]) {
                // A kernel told to restart after a panic has panicked.
                Some(Ending::Reset) if self.console.saw_panic() => {
                    self.end.end(Ending::Panic {
                        reason: self.console.panic_reason(),
                    });
                }
                Some(ending) => self.end.end(ending),
                None => {}
            },
        }
    }
}
