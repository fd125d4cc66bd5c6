//! Where the kernel's tables say that execution goes on, though no branch in the text leads there.

use std::ops::Range;

use guest_state::GuestVirtAddr;

/// Where the kernel's tables lead. Addresses that are no text may be among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Landings {
    /// Where the kernel goes on after a fault that it expects (`__ex_table`), in ascending order.
    pub fix_ups: Vec<GuestVirtAddr>,
    /// Where its jump labels lead when they are switched on (`__jump_table`), in ascending order.
    pub labels: Vec<GuestVirtAddr>,
}

impl Landings {
    /// Returns true if the kernel goes on at an address in the range after a fault that it expects.
    pub fn any_fix_up(&self, range: Range<GuestVirtAddr>) -> bool {
        let first = self.fix_ups.partition_point(|at| *at < range.start);
        self.fix_ups.get(first).is_some_and(|at| *at < range.end)
    }
}
