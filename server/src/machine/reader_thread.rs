//! How the thread that reads the guest's rings learns of changes.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::bell::Bell;

/// The shared state of one VM's thread that reads rings.
#[derive(Debug, Default)]
pub struct ReaderThread {
    pub(super) bell: Bell,
    /// Held while the rings are read: one thread does so at a time.
    pub(super) reading: Mutex<()>,
    /// True if probes have been changed since the thread last looked for jumps.
    pub(super) changed: AtomicBool,
}

impl ReaderThread {
    /// Tells the thread that there are jumps now.
    pub fn filling(&self) {
        self.bell.ring();
    }

    /// Tells the thread that there may be more jumps now, or fewer.
    pub fn probes_changed(&self) {
        self.changed.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    /// Tells the thread that the guest has ended.
    pub fn end(&self) {
        self.bell.end();
    }
}
