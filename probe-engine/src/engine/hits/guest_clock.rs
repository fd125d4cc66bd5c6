//! How the guest makes a time of its counter, as it was last seen.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use guest_kernel::clock::Conversion;
use guest_state::Tsc;

/// Ticks for which a conversion is used, some 100 ms: the guest may correct its clock.
const LASTING: u64 = 1 << 28;
/// The same while the guest corrects its clock with each of its own ticks, some milliseconds apart.
const FLEETING: u64 = 1 << 20;

/// How the guest made a time of its counter when that was last looked at.
#[derive(Debug, Default)]
pub(crate) struct GuestClock(ArcSwapOption<Looked>);

/// How the guest made a time of its counter at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looked {
    pub(crate) conversion: Conversion,
    pub(crate) at: Tsc,
}

impl Looked {
    /// Returns true if that is good for a counter.
    pub(crate) fn is_good_at(&self, tsc: Tsc) -> bool {
        let limit = match self.conversion.lasts() {
            true => LASTING,
            false => FLEETING,
        };
        tsc.0.abs_diff(self.at.0) < limit
    }
}

impl GuestClock {
    /// What was seen last.
    pub(crate) fn last(&self) -> Guard<Option<Arc<Looked>>> {
        self.0.load()
    }

    pub(crate) fn set(&self, looked: Looked) {
        self.0.store(Some(looked.into()));
    }
}
