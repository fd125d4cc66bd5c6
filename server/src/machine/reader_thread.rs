//! The work of reading what jumps have put into the guest's rings: who is told of it.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::bell::Bell;

/// The work of one VM's thread that reads rings.
#[derive(Debug, Default)]
pub struct ReaderThread {
    pub(super) bell: Bell,
    /// The rings are read by one thread at a time.
    pub(super) reading: Mutex<()>,
    /// Probes have been changed since it was last asked whether there are jumps.
    pub(super) changed: AtomicBool,
}

impl ReaderThread {
    /// Says that there are jumps now.
    pub fn filling(&self) {
        self.bell.ring();
    }

    /// Says that there may be more jumps now, or fewer.
    pub fn probes_changed(&self) {
        self.changed.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    /// Says that the guest has ended.
    pub fn end(&self) {
        self.bell.end();
    }
}
