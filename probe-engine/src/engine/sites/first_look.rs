//! Where hits look first, for a monitor that knows of a hit before it asks the engine about it.

use std::sync::atomic::{AtomicUsize, Ordering};

use guest_state::GuestVirtAddr;

use crate::engine::sites::plain_map::Places;

/// The places of the latest table's plain sites, without a reference to that table. Nothing is read from them, so it
/// doesn't matter if the table has been freed.
#[derive(Debug, Default)]
pub(crate) struct FirstLook {
    start: AtomicUsize,
    mask: AtomicUsize,
}

impl FirstLook {
    /// Takes the places of a new table.
    pub(crate) fn set(&self, places: Places) {
        // A reader that sees only one of the two new values fetches a line that isn't used.
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
