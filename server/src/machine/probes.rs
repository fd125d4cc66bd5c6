//! Changes of a VM's probes: each batch whole, or not at all, in one stop of the vCPUs.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use probe_engine::probe::{ProbeId, Switch};
use tonic::{Code, Status};
use vmm::StoppedVm;
use vmprobe_proto::v1;

use super::Machine;
use crate::{convert, status};

/// What came of a change.
#[derive(Debug)]
pub struct Changed<T> {
    /// Its result.
    pub result: T,
    /// How long the vCPUs stood still for it.
    pub stopped: Duration,
}

impl<T> Changed<T> {
    pub(super) fn map<U>(self, map: impl FnOnce(T) -> U) -> Changed<U> {
        Changed {
            result: map(self.result),
            stopped: self.stopped,
        }
    }

    /// How long the vCPUs stood still for it, in nanoseconds.
    pub fn stopped_ns(&self) -> u64 {
        u64::try_from(self.stopped.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Probes that a request chooses, by number or by name.
#[derive(Debug)]
pub struct Chosen {
    /// Their numbers.
    pub ids: Vec<u64>,
    /// Names of more.
    pub names: Vec<String>,
}

/// How long a change of probes waits for the guest to come to the end of one of its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries. The guest takes some microseconds, or milliseconds where it interrupts all its CPUs.
const PAUSE: Duration = Duration::from_millis(2);

/// Tries a change again as long as the guest is in the middle of one of its own.
fn retried<T>(mut change: impl FnMut() -> Result<T, Status>) -> Result<T, Status> {
    let end = Instant::now() + PATIENCE;
    loop {
        match change() {
            Err(status) if status.code() == Code::Aborted && Instant::now() < end => {
                thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

impl Machine {
    /// Registers all probes or none. Blocks.
    pub fn register(&self, specs: &[v1::ProbeSpec]) -> Result<Changed<Vec<v1::Probe>>, Status> {
        let specs = convert::specs("probes", specs)?;
        let _alone = self.changing.lock();
        self.check_room(specs.len())?;
        let mut draft = self.engine.draft(&self.memory, &specs);
        let mut register = |stopped: &StoppedVm<'_>| {
            self.find_kernel(stopped)?;
            let probes = self.engine.register_drafted(stopped, &mut draft);
            probes.map_err(|error| status::register(&error))
        };
        let changed = retried(|| self.change(&mut register))?;
        Ok(changed.map(convert::probes))
    }

    /// That the VM may have so many probes more. No others may come meanwhile.
    pub(super) fn check_room(&self, more: usize) -> Result<(), Status> {
        let (have, most) = (self.engine.probe_count(), self.max_probes);
        if have + more <= most {
            return Ok(());
        }
        Err(Status::resource_exhausted(format!(
            "VM `{}` has {have} probes and may have {most}, so {more} more are too many: remove some, \
             or start vmprobed with a larger --max-probes",
            self.name
        )))
    }

    /// Removes all chosen probes, or none. Blocks.
    pub fn unregister(&self, chosen: &Chosen) -> Result<Changed<Vec<v1::Probe>>, Status> {
        let _alone = self.changing.lock();
        let ids = self.ids(chosen)?;
        let unregister = |stopped: &StoppedVm<'_>| {
            // So that no event of theirs comes later.
            self.drain_all();
            let probes = self.engine.unregister(stopped, &ids);
            probes.map_err(|error| status::change(&error))
        };
        let changed = self.change(unregister)?;
        Ok(changed.map(convert::probes))
    }

    /// Enables or disables all chosen probes, or none. Blocks.
    pub fn enable(&self, chosen: &Chosen, on: bool) -> Result<Changed<Vec<v1::Probe>>, Status> {
        let _alone = self.changing.lock();
        let ids = self.ids(chosen)?;
        let enable = |stopped: &StoppedVm<'_>| {
            let probes = self.engine.switch(stopped, &ids, Switch::Enabled(on));
            probes.map_err(|error| status::change(&error))
        };
        let changed = retried(|| self.change(enable))?;
        Ok(changed.map(convert::probes))
    }

    /// Arms all probes that are enabled, or disarms all. Blocks.
    pub fn arm_all(&self, on: bool) -> Result<Changed<()>, Status> {
        let _alone = self.changing.lock();
        let arm = |stopped: &StoppedVm<'_>| {
            let armed = self.engine.switch_all(stopped, Switch::Enabled(on));
            armed.map_err(|error| status::change(&error))
        };
        retried(|| self.change(arm))
    }

    /// The probes and their counts. Blocks.
    pub fn list_probes(&self) -> Vec<v1::Probe> {
        self.drain();
        if self.engine.any_call_has_ended(&self.memory) {
            let _alone = self.changing.lock();
            self.stopped(|stopped| self.engine.count_ended(stopped));
        }
        convert::probes(self.engine.list())
    }

    /// The probes, and what is said of all of them at once. Blocks.
    pub fn describe_probes(&self) -> v1::ListProbesResponse {
        v1::ListProbesResponse {
            probes: self.list_probes(),
            disarmed: self.engine.is_disarmed(),
            optimization_off: !self.engine.is_optimizing(),
        }
    }

    /// The calls that return probes follow now. Blocks.
    pub fn list_calls(&self) -> Result<Vec<v1::FollowedCall>, Status> {
        self.stopped(|stopped| {
            let calls = self.engine.followed_calls(stopped);
            let calls = calls.map_err(|error| Status::internal(error.to_string()))?;
            Ok(calls.into_iter().map(convert::followed_call).collect())
        })
    }

    /// Checks that probes of these ids exist.
    pub fn check_probes(&self, ids: &[u64]) -> Result<(), Status> {
        if ids.is_empty() {
            return Ok(());
        }
        let probes = self.engine.list();
        let known: BTreeSet<u64> = probes.iter().map(|probe| probe.id.0).collect();
        match ids.iter().find(|id| !known.contains(id)) {
            None => Ok(()),
            Some(id) => Err(status::with_field(
                Code::NotFound,
                "probe_ids",
                format!("there is no probe number {id}: list the probes"),
            )),
        }
    }

    /// As [`Self::change_quietly`], for a client: probes may have begun to wait, or ceased to.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&StoppedVm<'_>) -> Result<T, Status>,
    ) -> Result<Changed<T>, Status> {
        let changed = self.change_quietly(change)?;
        self.rings.probes_changed();
        self.optimizer.probes_changed();
        Ok(changed)
    }

    /// Makes a change while all vCPUs stand still.
    pub(super) fn change_quietly<T>(
        &self,
        change: impl FnOnce(&StoppedVm<'_>) -> Result<T, Status>,
    ) -> Result<Changed<T>, Status> {
        self.look();
        self.stopped(|stopped| {
            let result = change(stopped)?;
            Ok(Changed {
                result,
                stopped: stopped.since().elapsed(),
            })
        })
    }

    pub(super) fn ids(&self, chosen: &Chosen) -> Result<Vec<ProbeId>, Status> {
        let mut ids: Vec<ProbeId> = chosen.ids.iter().copied().map(ProbeId).collect();
        for (index, name) in chosen.names.iter().enumerate() {
            let id = self.engine.find(name).ok_or_else(|| {
                let message = format!("no probe is called `{name}`: list the probes");
                status::with_field(Code::NotFound, format!("names[{index}]"), message)
            })?;
            ids.push(id);
        }
        Ok(ids)
    }
}
