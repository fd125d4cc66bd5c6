//! Jumps between being prepared and being put into the text.

use std::sync::Arc;

use guest_kernel::kprobes::GuestKprobes;
use guest_state::GuestMemory;

use crate::engine::changes::plan::{Generation, Plan};
use crate::engine::sites::jump::Verdict;
use crate::engine::sites::site::Site;
use crate::engine::sites::text_read::TextRead;

/// Jumps that are ready to be put into the guest's text, and those that have to leave it.
#[derive(Debug, Default)]
pub struct Prepared {
    pub(crate) verdicts: Vec<(Arc<Site>, Verdict)>,
    /// The change that puts all of them into the table.
    pub(crate) planned: Option<PlannedJumps>,
    /// The guest has given a jump back that it held.
    pub(crate) takes_back: bool,
    /// Calls that were followed are over, or are to be.
    pub(crate) tidies: bool,
    /// There is no room for a detour, and what removed probes had may be given to others.
    pub(crate) crowded: bool,
}

impl Prepared {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.verdicts.is_empty() && !self.takes_back && !self.crowded && !self.tidies
    }
}

/// A change that was worked out while the guest runs, for one without kprobes of its own.
#[derive(Debug)]
pub(crate) struct PlannedJumps {
    pub(crate) plan: Plan,
    pub(crate) text: TextRead,
    /// How many probes are jumps then that weren't before.
    pub(crate) placed: usize,
}

impl PlannedJumps {
    /// Returns true if nothing has changed since it was worked out.
    pub(crate) fn is_current(
        &self,
        now: &Generation,
        memory: &dyn GuestMemory,
        kprobes: &GuestKprobes,
    ) -> bool {
        let is_clear = kprobes.is_empty() && !kprobes.changing;
        is_clear && self.plan.before.is(now) && self.text.is_in(memory)
    }
}
