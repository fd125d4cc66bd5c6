//! Interrupts by message: the table in which the guest says what each vector is, and the bits of those
//! that wait while they are masked.
//!
//! PCI Local Bus Specification 3.0, 6.8.2.

use parking_lot::Mutex;

use crate::devices::events::{DeviceEvents, InterruptVector, MsiMessage};

use std::io;

/// Bytes of an entry of the table.
pub(crate) const TABLE_ENTRY_LEN: usize = 16;
/// Bit of an entry's vector control: it is masked.
const ENTRY_MASKED: u32 = 1;
/// Bits of the capability's message control (6.8.2.3).
const ENABLED: u16 = 1 << 15;
const ALL_MASKED: u16 = 1 << 14;
/// Bits of the address of a table or of pending bits that tell which BAR it is in.
const BAR_BITS: u32 = 0b111;

/// The vectors of a function.
pub(crate) struct Msix {
    vectors: Vec<Box<dyn InterruptVector>>,
    state: Mutex<State>,
}

struct State {
    /// Message control, as the guest has written it.
    control: u16,
    entries: Vec<Entry>,
}

/// A vector: its entry in the table, and what has become of it.
#[derive(Clone, Copy)]
struct Entry {
    message: MsiMessage,
    control: u32,
    /// It was raised while it was masked.
    is_pending: bool,
    /// The message that KVM has been told.
    told: Option<MsiMessage>,
}

impl Msix {
    /// `count` vectors, masked.
    ///
    /// # Errors
    /// KVM has no more of them.
    pub(crate) fn new(events: &dyn DeviceEvents, count: usize) -> io::Result<Self> {
        let vectors = (0..count).map(|_| events.new_vector());
        let vectors = vectors.collect::<io::Result<Vec<_>>>()?;
        let state = Mutex::new(State {
            control: 0,
            entries: vec![Entry::RESET; vectors.len()],
        });
        Ok(Self { vectors, state })
    }

    /// Number of vectors.
    pub(crate) fn len(&self) -> usize {
        self.vectors.len()
    }

    /// What follows the kind and the link of its capability, and which bits of that the guest may write;
    /// table and pending bits are at the given offsets of BAR 0.
    pub(crate) fn capability(&self, table: u32, pending: u32) -> ([u8; 10], [u8; 10]) {
        debug_assert!(table & BAR_BITS == 0 && pending & BAR_BITS == 0);
        let (mut body, mut writable) = ([0; 10], [0; 10]);
        let last = self.len().saturating_sub(1) as u16;
        body[..2].copy_from_slice(&last.to_le_bytes());
        body[2..6].copy_from_slice(&table.to_le_bytes());
        body[6..].copy_from_slice(&pending.to_le_bytes());
        writable[..2].copy_from_slice(&(ENABLED | ALL_MASKED).to_le_bytes());
        (body, writable)
    }

    /// Takes in what the guest has written to message control.
    pub(crate) fn set_control(&self, control: u16) {
        let mut state = self.state.lock();
        state.control = control;
        for index in 0..self.len() {
            self.settle(&mut state, index);
        }
    }

    /// Raises vector `index`, now or when it is unmasked. Nothing happens where there is no such vector,
    /// or while interrupts by message are off.
    pub(crate) fn signal(&self, index: u16) {
        let index = usize::from(index);
        let mut state = self.state.lock();
        if state.control & ENABLED == 0 {
            return;
        }
        if let Some(entry) = state.entries.get_mut(index) {
            entry.is_pending = true;
            self.settle(&mut state, index);
        }
    }

    /// Does a read from the table.
    pub(crate) fn read_table(&self, offset: usize, data: &mut [u8]) {
        let state = self.state.lock();
        for (byte, at) in data.iter_mut().zip(offset..) {
            let entry = state.entries.get(at / TABLE_ENTRY_LEN);
            *byte = entry.map_or(0, |entry| entry.bytes()[at % TABLE_ENTRY_LEN]);
        }
    }

    /// Does a write to the table: 4 or 8 bytes within an entry (6.8.2). Others are ignored.
    pub(crate) fn write_table(&self, offset: usize, data: &[u8]) {
        let (index, at) = (offset / TABLE_ENTRY_LEN, offset % TABLE_ENTRY_LEN);
        if ![4, 8].contains(&data.len()) || !at.is_multiple_of(data.len()) {
            return;
        }
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.get_mut(index) {
            let mut bytes = entry.bytes();
            bytes[at..at + data.len()].copy_from_slice(data);
            entry.set(&bytes);
            self.settle(&mut state, index);
        }
    }

    /// Does a read from the pending bits, one a vector.
    pub(crate) fn read_pending(&self, offset: usize, data: &mut [u8]) {
        let state = self.state.lock();
        for (byte, at) in data.iter_mut().zip(offset..) {
            let bits = state.entries.iter().skip(at.saturating_mul(8)).take(8);
            *byte = bits.enumerate().fold(0, |byte, (bit, entry)| {
                byte | u8::from(entry.is_pending) << bit
            });
        }
    }

    /// Forgets the interrupts that wait, as the function has been reset.
    pub(crate) fn forget_pending(&self) {
        for entry in &mut self.state.lock().entries {
            entry.is_pending = false;
        }
    }

    /// Tells KVM a vector's message, if it has changed, and raises the interrupt that has waited, if the
    /// vector isn't masked.
    fn settle(&self, state: &mut State, index: usize) {
        let is_on = state.control & (ENABLED | ALL_MASKED) == ENABLED;
        let (Some(entry), Some(vector)) = (state.entries.get_mut(index), self.vectors.get(index))
        else {
            return;
        };
        if !is_on || entry.control & ENTRY_MASKED != 0 {
            return;
        }
        if entry.told != Some(entry.message) {
            match vector.set_message(entry.message) {
                Ok(()) => entry.told = Some(entry.message),
                Err(error) => {
                    tracing::warn!("the message of an interrupt was not taken: {error}");
                    return;
                }
            }
        }
        if std::mem::take(&mut entry.is_pending)
            && let Err(error) = vector.signal()
        {
            tracing::warn!("an interrupt of a device was lost: {error}");
        }
    }
}

impl Entry {
    const RESET: Self = Self {
        message: MsiMessage {
            address: 0,
            data: 0,
        },
        control: ENTRY_MASKED,
        is_pending: false,
        told: None,
    };

    fn bytes(&self) -> [u8; TABLE_ENTRY_LEN] {
        let mut bytes = [0; TABLE_ENTRY_LEN];
        bytes[..8].copy_from_slice(&self.message.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.message.data.to_le_bytes());
        bytes[12..].copy_from_slice(&self.control.to_le_bytes());
        bytes
    }

    fn set(&mut self, bytes: &[u8; TABLE_ENTRY_LEN]) {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        self.message.address = u64::from(word(4)) << 32 | u64::from(word(0));
        self.message.data = word(8);
        self.control = word(12) & ENTRY_MASKED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::events::recorded::RecordedEvents;

    const MESSAGE: MsiMessage = MsiMessage {
        address: 0xfee0_1000,
        data: 0x41,
    };

    fn two_vectors() -> (Msix, RecordedEvents) {
        let events = RecordedEvents::default();
        (Msix::new(&events, 2).unwrap(), events)
    }

    /// Fills in vector 1, masked, as Linux does (drivers/pci/msi/msi.c).
    fn fill(msix: &Msix) {
        msix.write_table(16, &(MESSAGE.address as u32).to_le_bytes());
        msix.write_table(20, &[0; 4]);
        msix.write_table(24, &MESSAGE.data.to_le_bytes());
    }

    #[test]
    fn an_interrupt_waits_while_its_vector_or_all_are_masked() {
        let (msix, events) = two_vectors();
        msix.signal(1);
        msix.set_control(ENABLED | ALL_MASKED);
        fill(&msix);
        msix.signal(1);
        let mut pending = [0; 8];
        msix.read_pending(0, &mut pending);
        assert_eq!(pending, [2, 0, 0, 0, 0, 0, 0, 0]);
        msix.write_table(28, &[0; 4]);
        assert_eq!(*events.raised.lock(), []);
        msix.set_control(ENABLED);
        assert_eq!(*events.raised.lock(), [MESSAGE]);
        msix.signal(1);
        msix.write_table(28, &1u32.to_le_bytes());
        msix.signal(1);
        assert_eq!(*events.raised.lock(), [MESSAGE; 2]);
        msix.forget_pending();
        msix.write_table(28, &[0; 4]);
        assert_eq!(*events.raised.lock(), [MESSAGE; 2]);
    }

    #[test]
    fn a_message_that_changes_is_the_next_interrupt_s() {
        let (msix, events) = two_vectors();
        msix.set_control(ENABLED);
        fill(&msix);
        msix.write_table(28, &[0; 4]);
        msix.signal(1);
        msix.write_table(24, &0x42u32.to_le_bytes());
        msix.signal(1);
        let data: Vec<u32> = events.raised.lock().iter().map(|m| m.data).collect();
        assert_eq!(data, [0x41, 0x42]);
    }

    #[test]
    fn the_table_reads_as_it_was_written_at_each_width() {
        let (msix, _) = two_vectors();
        msix.write_table(16, &MESSAGE.address.to_le_bytes());
        msix.write_table(24, &u64::MAX.to_le_bytes());
        for width in [1, 2, 4, 8] {
            let mut read = [0; TABLE_ENTRY_LEN];
            for at in (0..TABLE_ENTRY_LEN).step_by(width) {
                msix.read_table(TABLE_ENTRY_LEN + at, &mut read[at..at + width]);
            }
            let expected = [
                &MESSAGE.address.to_le_bytes()[..],
                &[0xff; 4],
                &[1, 0, 0, 0],
            ]
            .concat();
            assert_eq!(read[..], expected);
        }
    }

    #[test]
    fn accesses_that_no_driver_makes_change_nothing() {
        let (msix, events) = two_vectors();
        msix.set_control(ENABLED);
        for (offset, data) in [
            (0, &[0xff; 2][..]),
            (14, &[0; 4]),
            (4, &[0; 8]),
            (0, &[0xff; 16]),
            (32, &[0; 4]),
            (usize::MAX - 3, &[0; 4]),
        ] {
            msix.write_table(offset, data);
        }
        msix.signal(2);
        msix.signal(u16::MAX);
        let mut read = [1; 16];
        msix.read_table(0, &mut read);
        assert_eq!(read, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        msix.read_table(usize::MAX - 20, &mut read);
        msix.read_pending(usize::MAX - 20, &mut read);
        assert_eq!(*events.raised.lock(), []);
    }
}
