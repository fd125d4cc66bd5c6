//! The time by the guest's own clock.

use arc_swap::ArcSwapOption;
use guest_kernel::clock::Conversion;
use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr, Tsc};

use crate::engine::Engine;

/// Ticks for which a conversion is used, some 100 ms: the guest may correct its clock.
const LASTING: u64 = 1 << 28;
/// The same while the guest corrects its clock with each of its own ticks, some milliseconds apart.
const FLEETING: u64 = 1 << 20;

/// How the guest made a time of its counter when that was last looked at.
#[derive(Debug, Default)]
pub(crate) struct GuestClock(ArcSwapOption<Looked>);

#[derive(Debug, Clone, Copy)]
struct Looked {
    conversion: Conversion,
    at: Tsc,
}

impl Looked {
    fn is_good_at(&self, tsc: Tsc) -> bool {
        let limit = match self.conversion.lasts() {
            true => LASTING,
            false => FLEETING,
        };
        tsc.0.abs_diff(self.at.0) < limit
    }
}

impl Engine {
    /// The time at a counter of about now, in nanoseconds; 0 while it isn't known. The variables of a CPU are at
    /// `of_cpu`, by these page tables.
    pub(crate) fn time(
        &self,
        memory: &dyn GuestMemory,
        (of_cpu, tables): (GuestVirtAddr, PageTables),
        tsc: Tsc,
    ) -> u64 {
        let last = self.clock.0.load();
        let ns = |looked: &Looked| looked.conversion.unbounded().ns(tsc);
        if let Some(last) = last.as_deref().filter(|last| last.is_good_at(tsc)) {
            return ns(last);
        }
        let clock = self.kernel.clock.as_ref();
        let found = clock.and_then(|clock| clock.read(memory, tables, of_cpu));
        let looked = found.map(|conversion| Looked {
            conversion,
            at: tsc,
        });
        if let Some(looked) = looked {
            self.clock.0.store(Some(looked.into()));
        }
        looked.as_ref().map_or(0, ns)
    }
}
