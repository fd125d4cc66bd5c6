//! Calls that never return, because their task has ended inside the function, or the guest has.
//!
//! They are neither hits nor missed ones: there is no return that could have been reported. They have a count of their
//! own, so that all calls are accounted for.

use guest_state::{GuestMemory, MemoryError, StoppedGuest};

use crate::calls::Task;
use crate::engine::Engine;

impl Engine {
    /// Counts the calls whose tasks have ended, and follows them no more. Worth calling when
    /// [`Self::any_call_has_ended`] returns true.
    pub fn count_ended(&self, guest: &dyn StoppedGuest) {
        let _registry = self.registry.lock();
        self.end_calls(guest);
        self.settle(guest.memory());
    }

    /// Returns true if there may be calls under way whose tasks have ended. May be called while the guest runs.
    pub fn any_call_has_ended(&self, memory: &dyn GuestMemory) -> bool {
        let mut tasks: Vec<_> = self
            .reader
            .followed(memory)
            .iter()
            .filter(|call| !call.returns())
            .map(|call| call.task)
            .collect();
        tasks.extend(self.returns.map(|it| it.task));
        tasks.extend(self.exits.tasks());
        let tables = self.last_tables.get();
        tasks.into_iter().any(|task| match tables {
            Some(tables) => self.has_ended(memory, &[tables], task),
            // It will be known when the guest is stopped.
            None => true,
        })
    }

    /// As [`Self::count_ended`], but the calls that detours follow are counted when the rings are read next. That has
    /// to be before their probes change.
    pub(crate) fn end_calls(&self, guest: &dyn StoppedGuest) {
        let tables = self.kernel_tables(guest);
        let memory = guest.memory();
        self.end_calls_of(memory, |task| self.has_ended(memory, &tables, task));
    }

    /// As [`Self::end_calls`], where the guest has ended, and all its tasks.
    pub(crate) fn end_all_calls(&self, memory: &dyn GuestMemory) {
        self.end_calls_of(memory, |_| true);
    }

    fn end_calls_of(&self, memory: &dyn GuestMemory, has_ended: impl Fn(Task) -> bool) {
        self.returns.end(&has_ended);
        self.exits.end(&has_ended);
        // Where memory can't be read, calls end as they would have without this.
        let _result = self.end_followed(memory, &has_ended);
    }

    fn end_followed(
        &self,
        memory: &dyn GuestMemory,
        has_ended: impl Fn(Task) -> bool,
    ) -> Result<(), MemoryError> {
        let Some(calls) = self.reader.calls() else {
            return Ok(());
        };
        for call in self.reader.followed(memory) {
            // Nothing else may change a call that the trampoline is at work on.
            if !call.returns() && has_ended(call.task) {
                calls.end(memory, &call)?;
            }
        }
        Ok(())
    }
}
