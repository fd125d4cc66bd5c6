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
    /// The change that puts them into the table, worked out for a guest with these kprobes.
    pub(crate) planned: Option<(PlannedJumps, GuestKprobes)>,
    /// The guest has given a jump back that it held.
    pub(crate) takes_back: bool,
    /// There are calls to tidy up: no probe follows them any more, or their tasks may have ended.
    pub(crate) tidies: bool,
    /// There is no room for a detour, and the room of removed probes' detours may be given to
    /// others.
    pub(crate) crowded: bool,
}

impl Prepared {
    /// Returns true if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.verdicts.is_empty() && !self.takes_back && !self.crowded && !self.tidies
    }
}

/// A change that makes jumps of breakpoints, or breakpoints of jumps.
#[derive(Debug)]
pub(crate) struct PlannedJumps {
    pub(crate) plan: Plan,
    /// How many probes are jumps then that weren't before.
    pub(crate) placed: usize,
    /// The text that it was worked out from. `None` if part of that can't be found again in guest
    /// memory.
    pub(crate) text: Option<TextRead>,
}

impl PlannedJumps {
    /// Returns true if nothing has changed since it was worked out.
    pub(crate) fn is_current(&self, now: &Generation, memory: &dyn GuestMemory) -> bool {
        let same_text = |text: &TextRead| text.is_in(memory);
        self.plan.before.is(now) && self.text.as_ref().is_some_and(same_text)
    }
}
