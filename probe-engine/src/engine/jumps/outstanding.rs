//! The work that is outstanding for the thread that makes jumps of breakpoints.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Times that the guest may be found changing its kprobes before jumps stop waiting for it.
const PATIENCE: u32 = 200;

/// Marks that any thread sets, without a lock, and the optimizer takes.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    any: AtomicBool,
    /// Calls of tasks that have ended may take the room of others.
    crowded_calls: AtomicBool,
    /// Some return addresses couldn't be put back for the moment.
    untidy_calls: AtomicBool,
    /// How often jumps have waited in a row because the guest was changing its kprobes.
    deferred: AtomicU32,
}

impl Outstanding {
    /// Notes that there is something to look at.
    pub(crate) fn add(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    /// Returns true if there is something to look at.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// As [`Self::any`], and clears it.
    pub(crate) fn take(&self) -> bool {
        self.any.swap(false, Ordering::Relaxed)
    }

    /// Notes that calls of tasks that have ended may take the room of others.
    pub(crate) fn add_crowded_calls(&self) {
        self.crowded_calls.store(true, Ordering::Relaxed);
        self.add();
    }

    pub(crate) fn take_crowded_calls(&self) -> bool {
        self.crowded_calls.swap(false, Ordering::Relaxed)
    }

    /// Notes that some return addresses couldn't be put back for the moment.
    pub(crate) fn add_untidy_calls(&self) {
        self.untidy_calls.store(true, Ordering::Relaxed);
        self.add();
    }

    pub(crate) fn take_untidy_calls(&self) -> bool {
        self.untidy_calls.swap(false, Ordering::Relaxed)
    }

    /// Notes whether the guest is changing its kprobes. Returns true if jumps wait for it.
    pub(crate) fn defer(&self, changing: bool) -> bool {
        if !changing {
            self.deferred.store(0, Ordering::Relaxed);
            return false;
        }
        self.deferred.fetch_add(1, Ordering::Relaxed) < PATIENCE
    }
}
