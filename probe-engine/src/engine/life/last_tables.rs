//! Page tables for a guest that runs.

use guest_state::x86_64::paging::PageTables;

use crate::engine::lock::{Lock, Rank};

/// The page tables by which the guest's memory is read while it runs: the kernel's, as they were when the guest last
/// stood still.
#[derive(Debug)]
pub(crate) struct LastTables(Lock<Option<PageTables>>);

impl LastTables {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Rank::PageTables, None))
    }

    pub(crate) fn get(&self) -> Option<PageTables> {
        *self.0.lock()
    }

    pub(crate) fn set(&self, tables: PageTables) {
        *self.0.lock() = Some(tables);
    }
}
