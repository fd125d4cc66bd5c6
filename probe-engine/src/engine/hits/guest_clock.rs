//! How the guest converts its time stamp counter to a time, as it was last read.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use guest_kernel::clock::Conversion;
use guest_state::Tsc;

/// Ticks for which a conversion is used, some 100 ms: the guest may correct its clock.
const LASTING: u64 = 1 << 28;
/// The same while the guest corrects its clock with each of its own ticks, some milliseconds apart.
const FLEETING: u64 = 1 << 20;

/// How the guest converted its counter to a time when that was last read.
#[derive(Debug, Default)]
pub(crate) struct GuestClock(ArcSwapOption<Looked>);

/// How the guest converted its counter to a time at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looked {
    pub(crate) conversion: Conversion,
    pub(crate) at: Tsc,
}

impl Looked {
    /// Returns true if the conversion can be used at this value of the counter.
    pub(crate) fn is_good_at(&self, tsc: Tsc) -> bool {
        let limit = match self.conversion.lasts() {
            true => LASTING,
            false => FLEETING,
        };
        tsc.0.abs_diff(self.at.0) < limit
    }
}

impl GuestClock {
    /// The conversion that was read last.
    pub(crate) fn last(&self) -> Guard<Option<Arc<Looked>>> {
        self.0.load()
    }

    pub(crate) fn set(&self, looked: Looked) {
        self.0.store(Some(looked.into()));
    }
}
