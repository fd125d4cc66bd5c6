//! Calls that are followed to the function's own returns.

use std::collections::HashMap;
use std::sync::Arc;

use guest_state::{GuestVirtAddr, Registers, Tsc};

use crate::calls::Task;
use crate::engine::lock::{Lock, Rank};
use crate::engine::sites::probe::Probe;

/// The calls under way, by the address of their return address. Several at one address are of probes of one function.
#[derive(Debug)]
pub(crate) struct Exits(Lock<HashMap<u64, Vec<Entered>>>);

/// A call under way whose beginning a probe has seen.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) probe: Arc<Probe>,
    pub(crate) task: Task,
    pub(crate) caller: GuestVirtAddr,
    pub(crate) entry_tsc: Tsc,
    pub(crate) entry: Registers,
}

impl Exits {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Rank::Exits, HashMap::new()))
    }

    /// Adds a call that has begun.
    pub(crate) fn begin(&self, at: u64, call: Entered) {
        self.0.lock().entry(at).or_default().push(call);
    }

    /// Returns true if a call is under way with its return address at `at`.
    pub(crate) fn has(&self, at: u64) -> bool {
        self.0.lock().contains_key(&at)
    }

    /// Forgets the calls that are over, and returns them.
    pub(crate) fn take(&self, is_over: impl Fn(&Entered) -> bool) -> Vec<Entered> {
        let mut taken = Vec::new();
        self.0.lock().retain(|_, calls| {
            taken.extend(calls.extract_if(.., |call| is_over(call)));
            !calls.is_empty()
        });
        taken
    }

    /// Counts all calls of tasks that have ended, and forgets them. Returns true if there were any.
    pub(crate) fn end(&self, has_ended: impl Fn(Task) -> bool) -> bool {
        let ended = self.take(|call| has_ended(call.task));
        ended.iter().for_each(|call| call.probe.lose_call());
        !ended.is_empty()
    }

    /// The tasks of the calls under way.
    pub(crate) fn tasks(&self) -> Vec<Task> {
        let calls = self.0.lock();
        calls.values().flatten().map(|call| call.task).collect()
    }

    /// As [`Self::take`], of the calls with their return address at `at`.
    pub(crate) fn take_at(&self, at: u64, is_over: impl Fn(&Entered) -> bool) -> Vec<Entered> {
        let mut all = self.0.lock();
        let Some(calls) = all.get_mut(&at) else {
            return Vec::new();
        };
        let taken = calls.extract_if(.., |call| is_over(call)).collect();
        if calls.is_empty() {
            all.remove(&at);
        }
        taken
    }
}
