//! Turning probes into jumps, in the background.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_engine::engine::Prepared;
use tonic::{Code, Status};
use vmm::StoppedVm;
use vmm::VmState;
use vmprobe_proto::v1;

use super::bell::Heard;
use super::{Changed, Machine};
use crate::blocking::blocking;
use crate::status::Precondition;
use crate::{convert, status};

/// Changes within this time of each other are optimized in one stop.
const GATHER: Duration = Duration::from_millis(5);
/// How often the optimizer looks for probes that have begun to wait without a message to it: a module was started, or
/// the guest has removed a kprobe of its own.
const LOOK: Duration = Duration::from_millis(50);
/// After a look that brought no jump, and without a change of probes, the next look waits for this many times as long
/// as that one took. How long it takes is up to the guest, which may have written over memory that detours and the
/// trampoline share with the host.
const REST: u32 = 9;

impl Machine {
    /// Waits until each of the selected probes is a jump or never will be. Without a selection, waits for all probes.
    pub async fn wait_probes(
        self: &Arc<Self>,
        selector: &v1::ProbeSelector,
    ) -> Result<Vec<v1::Probe>, Status> {
        let ids: BTreeSet<u64> = self.ids(selector)?.into_iter().map(|id| id.0).collect();
        let mut settled = self.optimizer.settled.subscribe();
        let mut ending = self.ending.clone();
        loop {
            // Both channels are marked as seen before the probes are read, so that no later message is missed.
            settled.borrow_and_update();
            let no_news = ending.has_changed().is_err();
            let has_ended = ending.borrow_and_update().is_some() || no_news;
            let (machine, ids) = (Arc::clone(self), ids.clone());
            let probes = blocking(move || machine.select(&ids)).await?;
            if probes.iter().all(convert::is_settled) {
                return Ok(probes);
            }
            if has_ended {
                let message = format!("VM `{}` has ended, and its probes still waited", self.name);
                return Err(status::precondition(
                    Precondition::State,
                    &self.name,
                    message,
                ));
            }
            tokio::select! {
                _ = settled.changed() => {}
                _ = ending.changed() => {}
            }
        }
    }

    /// Returns the probes of these numbers, or all probes if there are no numbers.
    fn select(&self, ids: &BTreeSet<u64>) -> Result<Vec<v1::Probe>, Status> {
        let mut probes = self.list_probes();
        if ids.is_empty() {
            return Ok(probes);
        }
        probes.retain(|probe| ids.contains(&probe.id));
        let found: BTreeSet<u64> = probes.iter().map(|probe| probe.id).collect();
        match ids.difference(&found).next() {
            None => Ok(probes),
            Some(id) => {
                let message = format!("there is no probe number {id}: list the probes");
                Err(status::with_field(Code::NotFound, "selector.ids", message))
            }
        }
    }

    /// Turns probes into jumps until the guest has ended.
    pub(super) fn optimize_in_background(self: &Arc<Self>) {
        let bell = &self.optimizer.bell;
        // Before there is a probe, no probe can begin to wait.
        let mut look = None;
        let mut waited = false;
        loop {
            match bell.wait(look) {
                Heard::End => return,
                Heard::Ring if bell.gather(GATHER) => return,
                Heard::Ring | Heard::Nothing => look = Some(LOOK),
            }
            let waits = self.engine.has_waiting();
            if waits {
                look = Some(LOOK.max(self.optimize_what_waits() * REST));
            }
            if waits || waited {
                self.optimizer.settled.send_replace(());
            }
            waited = waits;
        }
    }

    /// Optimizes batch by batch, as long as that brings jumps. Returns how long the last look took, which found no
    /// more.
    fn optimize_what_waits(&self) -> Duration {
        while self.engine.has_waiting() && self.vm.state() != VmState::Ended {
            let begun = Instant::now();
            let prepared = self.engine.prepare_jumps(&self.memory);
            if prepared.is_empty() {
                return begun.elapsed();
            }
            let prepared_in = begun.elapsed();
            match self.commit_jumps(&prepared) {
                Ok(Changed { result: 0, .. }) => return begun.elapsed(),
                Ok(changed) => {
                    let stopped = changed.stopped;
                    let probes = changed.result as u64;
                    tracing::info!(vm = self.name, probes, ?prepared_in, ?stopped, "optimized");
                    self.optimizer.add(probes, changed.stopped_ns());
                    self.optimizer.settled.send_replace(());
                    self.reader.filling();
                }
                Err(error) => {
                    let why = error.message();
                    tracing::error!(vm = self.name, "can't turn probes into jumps: {why}");
                    return begun.elapsed();
                }
            }
        }
        Duration::ZERO
    }

    fn commit_jumps(&self, prepared: &Prepared) -> Result<Changed<usize>, Status> {
        let _alone = self.changing.lock();
        let commit = |stopped: &StoppedVm<'_>| {
            let committed = self.engine.commit_jumps(stopped, prepared);
            committed.map_err(|error| status::change(&error))
        };
        self.change_quietly(commit)
    }
}
