//! Where hits look first, for a monitor that knows of a hit before it asks about it.

use std::sync::atomic::{AtomicUsize, Ordering};

use guest_state::GuestVirtAddr;

use crate::engine::sites::plain_map::Places;

/// The places of the latest table's plain sites, known without a hold on that table. Nothing is read from them, so it
/// doesn't matter whether they are still there.
#[derive(Debug, Default)]
pub(crate) struct FirstLook {
    start: AtomicUsize,
    mask: AtomicUsize,
}

impl FirstLook {
    /// There is another table.
    pub(crate) fn set(&self, places: Places) {
        // Whoever sees one without the other fetches something else in vain.
        self.start.store(places.start, Ordering::Relaxed);
        self.mask.store(places.mask, Ordering::Relaxed);
    }

    /// The address in memory where a hit at `at` looks first.
    pub(crate) fn of(&self, at: GuestVirtAddr) -> usize {
        let places = Places {
            start: self.start.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        };
        places.of(at)
    }
}
