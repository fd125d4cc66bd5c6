//! The guest's first serial port: a 16550A by vm-superio, its output kept by
//! the [`Console`], its input queued until the guest takes it.

use std::{collections::VecDeque, io, sync::Arc};

use parking_lot::Mutex;
use vm_device::{
    DevicePio,
    bus::{PioAddress, PioAddressOffset},
};
use vm_superio::{Serial, Trigger, serial::NoEvents};
use vmm_sys_util::eventfd::EventFd;

use crate::devices::{
    console::{Console, ConsoleInput, ConsoleWriter},
    guest_end::GuestEnd,
};

/// Input that may wait for the guest to read it, in bytes.
const INPUT_LIMIT: usize = 1 << 20;

/// Registers of a 16550A, and bits in them (PC16550D data sheet, table II).
const INTERRUPT_ENABLE: u8 = 1;
const RECEIVED: u8 = 1;
const INTERRUPT: u8 = 2;
const NO_INTERRUPT: u8 = 1;
const DATA_RECEIVED: u8 = 4;
const LINE_CONTROL: u8 = 3;
const DIVISOR_ACCESS: u8 = 0x80;
const LINE_STATUS: u8 = 5;
const DATA_READY: u8 = 1;

/// The interrupt line of the port: an event that KVM turns into an edge.
pub(crate) struct InterruptLine(pub(crate) EventFd);

impl Trigger for InterruptLine {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// The port, shared by the vCPUs and the senders of input.
pub(crate) struct SerialPort {
    state: Arc<Mutex<State>>,
    end: GuestEnd,
}

struct State {
    uart: Serial<InterruptLine, NoEvents, ConsoleWriter>,
    input: VecDeque<u8>,
}

impl SerialPort {
    pub(crate) fn new(line: EventFd, console: &Arc<Console>, end: GuestEnd) -> Self {
        let uart = Serial::new(InterruptLine(line), ConsoleWriter::new(console));
        Self {
            state: Arc::new(Mutex::new(State {
                uart,
                input: VecDeque::new(),
            })),
            end,
        }
    }

    /// The end of the port where input goes in.
    pub(crate) fn input(&self) -> SerialInput {
        SerialInput {
            state: Arc::clone(&self.state),
        }
    }

    fn read(&self, register: u8) -> u8 {
        let mut state = self.state.lock();
        let value = match register {
            INTERRUPT => state.interrupt(),
            _ => state.uart.read(register),
        };
        state.refill();
        value
    }

    fn write(&self, register: u8, value: u8) {
        let mut state = self.state.lock();
        if let Err(error) = state.uart.write(register, value) {
            tracing::warn!("serial port: a write was lost: {error:?}");
        }
    }
}

impl DevicePio for SerialPort {
    fn pio_read(&self, _: PioAddress, offset: PioAddressOffset, data: &mut [u8]) {
        data.fill_with(|| self.read(offset as u8));
    }

    fn pio_write(&self, _: PioAddress, offset: PioAddressOffset, data: &[u8]) {
        for &value in data {
            self.write(offset as u8, value);
        }
        self.end.end_after_reported_panic();
    }
}

impl State {
    /// The interrupt identification register. vm-superio reports received data once. A 16550A reports it as
    /// long as there is any: Linux' driver takes 256 characters at a time and would leave the rest.
    fn interrupt(&mut self) -> u8 {
        let told = self.uart.read(INTERRUPT);
        let waits = self.uart.read(LINE_STATUS) & DATA_READY != 0;
        let is_divisor = self.uart.read(LINE_CONTROL) & DIVISOR_ACCESS != 0;
        let is_enabled = !is_divisor && self.uart.read(INTERRUPT_ENABLE) & RECEIVED != 0;
        if told & NO_INTERRUPT != 0 && waits && is_enabled {
            return told & !NO_INTERRUPT | DATA_RECEIVED;
        }
        told
    }

    /// Hands queued input to the port as far as its FIFO has room.
    fn refill(&mut self) {
        let room = self.uart.fifo_capacity().min(self.input.len());
        if room == 0 {
            return;
        }
        let (front, _) = self.input.as_slices();
        let chunk = &front[..room.min(front.len())];
        // An error is a loopback in progress or a lost interrupt: what was not
        // taken stays queued.
        let taken = self.uart.enqueue_raw_bytes(chunk).unwrap_or(0);
        self.input.drain(..taken);
    }
}

/// The end of the port where a person's or a program's input goes in.
pub(crate) struct SerialInput {
    state: Arc<Mutex<State>>,
}

impl ConsoleInput for SerialInput {
    fn send(&self, bytes: &[u8]) -> usize {
        let mut state = self.state.lock();
        let taken = bytes.len().min(INPUT_LIMIT - state.input.len());
        state.input.extend(&bytes[..taken]);
        state.refill();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: u8 = 0;

    fn port() -> (SerialPort, Arc<Console>) {
        let console = Arc::new(Console::default());
        let end = GuestEnd::new(Arc::clone(&console), Arc::default());
        let line = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        (SerialPort::new(line, &console, end), console)
    }

    /// Characters that Linux' driver takes at most before it looks for an interrupt again
    /// (`serial8250_rx_chars` in `drivers/tty/serial/8250/8250_port.c`).
    const BURST: usize = 256;

    /// Takes input as Linux' driver does at an interrupt: until the port says that there is none.
    fn interrupted(port: &SerialPort) -> Vec<u8> {
        let mut got = Vec::new();
        while port.read(INTERRUPT) & NO_INTERRUPT == 0 {
            for _ in 0..BURST {
                if port.read(LINE_STATUS) & DATA_READY == 0 {
                    break;
                }
                got.push(port.read(DATA));
            }
        }
        got
    }

    #[test]
    fn a_line_of_any_length_is_taken_at_one_interrupt() {
        for length in [1, 64, 256, 257, 300, 319, 320, 796] {
            let (port, _) = port();
            port.write(INTERRUPT_ENABLE, RECEIVED);
            let sent: Vec<u8> = (0..length).map(|i: u32| i as u8).collect();
            port.input().send(&sent);
            assert_eq!(interrupted(&port).len(), sent.len());
        }
    }

    #[test]
    fn no_interrupt_is_told_of_while_none_is_enabled() {
        let (port, _) = port();
        port.input().send(b"x");
        assert_eq!(interrupted(&port), b"");
    }

    #[test]
    fn input_longer_than_the_fifo_arrives_whole_and_in_order() {
        let (port, _) = port();
        let sent: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        assert_eq!(port.input().send(&sent), 1000);
        let mut got = Vec::new();
        while port.read(LINE_STATUS) & DATA_READY != 0 {
            got.push(port.read(DATA));
        }
        assert_eq!(got, sent);
    }

    #[test]
    fn input_that_nobody_reads_is_bounded() {
        let (port, _) = port();
        let sent = vec![b'x'; 2 * INPUT_LIMIT];
        let taken = port.input().send(&sent);
        assert!((INPUT_LIMIT..INPUT_LIMIT + 100).contains(&taken));
        assert!(port.input().send(b"more") < 100);
    }

    #[test]
    fn output_reaches_the_console() {
        let (port, console) = port();
        for byte in b"hello" {
            port.write(DATA, *byte);
        }
        assert_eq!(console.read(0).bytes, b"hello");
    }
}
