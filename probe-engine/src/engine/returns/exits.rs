//! Calls that are followed to the function's own returns.

use std::collections::HashMap;
use std::sync::Arc;

use guest_state::{GuestVirtAddr, Registers, Tsc};

use crate::calls::Task;
use crate::engine::sites::probe::Probe;

/// The calls under way, by the address of their return address; several only of probes of one function.
#[derive(Debug, Default)]
pub(crate) struct Exits(pub(crate) HashMap<u64, Vec<Entered>>);

/// A call under way, which a probe has seen begin.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) probe: Arc<Probe>,
    pub(crate) task: Task,
    pub(crate) caller: GuestVirtAddr,
    pub(crate) entry_tsc: Tsc,
    pub(crate) entry: Registers,
}

impl Exits {
    /// Forgets the calls that aren't to be kept, and says which these were.
    pub(crate) fn take(&mut self, is_over: impl Fn(&Entered) -> bool) -> Vec<Entered> {
        let mut taken = Vec::new();
        self.0.retain(|_, calls| {
            taken.extend(calls.extract_if(.., |call| is_over(call)));
            !calls.is_empty()
        });
        taken
    }

    /// Counts all calls of tasks that have ended, and forgets them; whether there were any.
    pub(crate) fn end(&mut self, has_ended: impl Fn(Task) -> bool) -> bool {
        let ended = self.take(|call| has_ended(call.task));
        ended.iter().for_each(|call| call.probe.lose_call());
        !ended.is_empty()
    }

    /// Whose the calls under way are.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = Task> {
        self.0.values().flatten().map(|call| call.task)
    }

    /// As [`Self::take`], of those with their return address at `at`.
    pub(crate) fn take_at(&mut self, at: u64, is_over: impl Fn(&Entered) -> bool) -> Vec<Entered> {
        let Some(calls) = self.0.get_mut(&at) else {
            return Vec::new();
        };
        let taken = calls.extract_if(.., |call| is_over(call)).collect();
        if calls.is_empty() {
            self.0.remove(&at);
        }
        taken
    }
}
