//! A console device: the guest's console by queues of bytes instead of a serial port (5.3).
//!
//! It has one port, `hvc0` in Linux. What the guest writes goes to the VM's console, as what it writes to its serial
//! port does, and what is typed there goes to the guest.

mod device;
mod input;
#[cfg(test)]
mod tests;

pub(crate) use device::ConsoleDevice;

/// A guest's virtio console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioConsole {
    /// The size of the terminal at its other end. None: it isn't known.
    pub size: Option<ConsoleSize>,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsoleSize {
    /// Characters in a row.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}
