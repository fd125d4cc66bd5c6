//! The interrupts of a virtio device, and its need of a reset.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

use crate::devices::pci::Msix;

/// "No vector" in a vector register (4.1.5.1.2).
pub(crate) const NO_VECTOR: u16 = 0xffff;
/// Bits of the interrupt status (4.1.4.5).
const QUEUE_INTERRUPT: u8 = 1 << 0;
const CONFIG_INTERRUPT: u8 = 1 << 1;

/// How the device's thread tells the driver of something. Shared with the transport, whose registers
/// these are.
pub(crate) struct Interrupts {
    msix: Msix,
    /// The vector of changes of the configuration.
    config: AtomicU16,
    /// The vector of each queue.
    queues: Vec<AtomicU16>,
    status: AtomicU8,
    needs_reset: AtomicBool,
}

impl Interrupts {
    /// Makes interrupts that have no vector of `msix` until the driver gives them one.
    pub(crate) fn new(msix: Msix, queues: usize) -> Self {
        let queues = (0..queues).map(|_| AtomicU16::new(NO_VECTOR)).collect();
        Self {
            msix,
            config: AtomicU16::new(NO_VECTOR),
            queues,
            status: AtomicU8::new(0),
            needs_reset: AtomicBool::new(false),
        }
    }

    pub(crate) fn msix(&self) -> &Msix {
        &self.msix
    }

    /// Tells the driver that chains of queue `index` were given back.
    pub(crate) fn queue_used(&self, index: usize) {
        self.status.fetch_or(QUEUE_INTERRUPT, Ordering::Relaxed);
        self.msix.signal(self.queue_vector(index));
    }

    /// Tells the driver that the device's configuration has changed (4.1.5.4).
    pub(crate) fn config_changed(&self) {
        self.status.fetch_or(CONFIG_INTERRUPT, Ordering::Relaxed);
        self.msix.signal(self.config_vector());
    }

    /// Tells the driver that the device can do nothing more until it is reset (2.1.2).
    pub(crate) fn need_reset(&self) {
        self.needs_reset.store(true, Ordering::Relaxed);
        self.config_changed();
    }

    pub(crate) fn needs_reset(&self) -> bool {
        self.needs_reset.load(Ordering::Relaxed)
    }

    /// Returns the interrupt status, and clears it.
    pub(crate) fn take_status(&self) -> u8 {
        self.status.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn config_vector(&self) -> u16 {
        self.config.load(Ordering::Relaxed)
    }

    pub(crate) fn set_config_vector(&self, vector: u16) {
        self.config.store(self.known(vector), Ordering::Relaxed);
    }

    /// The vector of queue `index`.
    pub(crate) fn queue_vector(&self, index: usize) -> u16 {
        let vector = self.queues.get(index);
        vector.map_or(NO_VECTOR, |vector| vector.load(Ordering::Relaxed))
    }

    pub(crate) fn set_queue_vector(&self, index: usize, vector: u16) {
        if let Some(place) = self.queues.get(index) {
            place.store(self.known(vector), Ordering::Relaxed);
        }
    }

    /// Forgets everything, as the device has been reset.
    pub(crate) fn reset(&self) {
        for vector in self.queues.iter().chain([&self.config]) {
            vector.store(NO_VECTOR, Ordering::Relaxed);
        }
        self.status.store(0, Ordering::Relaxed);
        self.needs_reset.store(false, Ordering::Relaxed);
        self.msix.forget_pending();
    }

    /// Returns `vector`, or [`NO_VECTOR`] if there is no such vector: the driver reads it back
    /// (4.1.5.1.2.1).
    fn known(&self, vector: u16) -> u16 {
        if usize::from(vector) < self.msix.len() {
            vector
        } else {
            NO_VECTOR
        }
    }
}
