//! The time by the guest's own clock.

use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr, Tsc};

use crate::engine::Engine;
use crate::engine::hits::guest_clock::Looked;

impl Engine {
    /// Returns the time in nanoseconds at a recent value of the time stamp counter, or 0 while it isn't known. `of_cpu`
    /// is where the variables of a CPU are, by these page tables.
    pub(crate) fn time(
        &self,
        memory: &dyn GuestMemory,
        (of_cpu, tables): (GuestVirtAddr, PageTables),
        tsc: Tsc,
    ) -> u64 {
        let last = self.clock.last();
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
            self.clock.set(looked);
        }
        looked.as_ref().map_or(0, ns)
    }
}
