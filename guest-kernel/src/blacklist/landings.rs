//! Addresses where execution continues according to the kernel's tables, with no branch in the text.

use std::ops::Range;

use guest_state::GuestVirtAddr;

/// Addresses where execution continues according to the tables. Some may not be text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Landings {
    /// Fix-ups of expected faults (`__ex_table`), in ascending order.
    pub fix_ups: Vec<GuestVirtAddr>,
    /// Targets of jump labels that are switched on (`__jump_table`), in ascending order.
    pub labels: Vec<GuestVirtAddr>,
}

impl Landings {
    /// Returns true if a fix-up is in the range.
    pub fn any_fix_up(&self, range: Range<GuestVirtAddr>) -> bool {
        let first = self.fix_ups.partition_point(|at| *at < range.start);
        self.fix_ups.get(first).is_some_and(|at| *at < range.end)
    }
}
