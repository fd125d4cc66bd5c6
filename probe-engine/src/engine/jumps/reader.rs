//! What is known of the rings while there are any.

use guest_state::GuestMemory;

use crate::detour::Environment;
use crate::engine::jumps::credit::Credit;
use crate::engine::returns::follower::Follower;
use crate::probe::NoJump;
use crate::ring::Rings;

/// The rings, once the guest has started and jumps are wanted.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) rings: Rings,
    pub(crate) environment: Environment,
    pub(crate) cells: u32,
    /// Whose the records and counts are.
    pub(crate) credit: Credit,
    /// What return probes have, or why they can't be jumps.
    pub(crate) follower: Result<Follower, NoJump>,
    /// All that was found so far; see [`crate::engine::Drained::damaged`].
    pub(crate) damaged: u64,
    /// Drains in a row that have found nothing, with no jump in the text.
    pub(crate) quiet: u32,
}

impl Reader {
    /// Forgets those detours that are no more. No call of theirs is under way.
    pub(crate) fn forget_detours(
        &mut self,
        memory: &dyn GuestMemory,
        is_gone: impl Fn(u32) -> bool,
    ) {
        for number in (0..self.credit.numbers()).filter(|number| is_gone(*number)) {
            if self.credit.forget(number)
                && let Ok(follower) = &self.follower
            {
                // Where that can't be written, nothing is followed.
                let _result = follower.calls.none_active(memory, number);
            }
        }
    }
}
