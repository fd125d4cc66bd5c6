//! What there is to do for the thread that makes jumps of breakpoints.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// So often may the guest be found changing its kprobes before jumps stop waiting for it.
const PATIENCE: u32 = 200;

/// Marks that any thread sets, without a lock, and the optimizer takes.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    any: AtomicBool,
    /// Calls of tasks that have ended may take the room of others.
    crowded_calls: AtomicBool,
    /// Return addresses couldn't be put back for a moment.
    untidy_calls: AtomicBool,
    /// How often jumps have waited in a row because the guest was changing its kprobes.
    deferred: AtomicU32,
}

impl Outstanding {
    /// There is something to look at.
    pub(crate) fn add(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    /// Whether there is something to look at.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// As [`Self::any`], which it is no more.
    pub(crate) fn take(&self) -> bool {
        self.any.swap(false, Ordering::Relaxed)
    }

    /// Calls of tasks that have ended may take the room of others.
    pub(crate) fn add_crowded_calls(&self) {
        self.crowded_calls.store(true, Ordering::Relaxed);
        self.add();
    }

    pub(crate) fn take_crowded_calls(&self) -> bool {
        self.crowded_calls.swap(false, Ordering::Relaxed)
    }

    /// Return addresses couldn't be put back for a moment.
    pub(crate) fn add_untidy_calls(&self) {
        self.untidy_calls.store(true, Ordering::Relaxed);
        self.add();
    }

    pub(crate) fn take_untidy_calls(&self) -> bool {
        self.untidy_calls.swap(false, Ordering::Relaxed)
    }

    /// The guest is changing its kprobes, or isn't. Returns whether jumps wait for it.
    pub(crate) fn defer(&self, changing: bool) -> bool {
        if !changing {
            self.deferred.store(0, Ordering::Relaxed);
            return false;
        }
        self.deferred.fetch_add(1, Ordering::Relaxed) < PATIENCE
    }
}
