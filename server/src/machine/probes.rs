//! Changes of a VM's probes. Each batch is done as a whole or not at all, in one stop of the vCPUs.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use probe_engine::probe::{ProbeId, ProbeInfo, Switch};
use tonic::{Code, Status};
use vmm::StoppedVm;
use vmprobe_proto::v1;
use vmprobe_proto::v1::ProbeSelector;
use vmprobe_proto::v1::update_probes_request::Change;

use super::Machine;
use super::asked::AskedOfBatch;
use super::patterns::Expanded;
use crate::held::Held;
use crate::page::Page;
use crate::{convert, status};

/// The result of a change.
#[derive(Debug)]
pub struct Changed<T> {
    /// What the change returns.
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

    /// Returns how long the vCPUs stood still for it, in nanoseconds.
    pub fn stopped_ns(&self) -> u64 {
        u64::try_from(self.stopped.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// How long a change of probes waits until the guest has finished a change of its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries. The guest's change takes some microseconds, or milliseconds if it interrupts all its CPUs.
const PAUSE: Duration = Duration::from_millis(2);

/// Tries a change again as long as the guest is in the middle of a change of its own.
pub(super) fn retried<T>(mut change: impl FnMut() -> Result<T, Status>) -> Result<T, Status> {
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
    /// Registers all probes or none. They go with the session of this name, unless it's empty. Blocks.
    pub fn register(
        &self,
        specs: &[v1::ProbeSpec],
        session: &str,
    ) -> Result<Changed<Vec<v1::Probe>>, Status> {
        convert::check_batch(specs.len())?;
        let mut batch = Expanded::default();
        self.expand("probes", specs, &mut batch)?;
        let (specs, compiled) = self.compile(&batch)?;
        let fields = batch.fields;
        let _alone = self.changing.lock();
        self.sessions.check(session)?;
        self.check_room(specs.len())?;
        self.check_events(&specs, &compiled, &fields)?;
        let asked = AskedOfBatch::new(&compiled);
        let mut draft = self.engine.draft(&self.memory, &specs);
        let mut register = |stopped: &StoppedVm<'_>| {
            let probes = self.engine.register_drafted(stopped, &mut draft);
            let ids = probes.map_err(|error| status::register(&error, &fields))?;
            self.asked.remember(ids, &asked);
            Ok(())
        };
        let changed = retried(|| self.change(&mut register))?;
        let ids = draft.registered();
        self.sessions.add(session, ids);
        Ok(changed.map(|()| self.told(self.engine.describe(ids))))
    }

    /// Checks that the VM may have `more` further probes. The caller makes sure that no others come meanwhile.
    pub(super) fn check_room(&self, more: usize) -> Result<(), Status> {
        let (have, most) = (self.engine.probe_count(), self.max_probes);
        if have + more <= most {
            return Ok(());
        }
        let why = format!(
            "VM `{}` has {have} probes and may have {most}, so {more} more are too many: remove some, \
             or start vmprobed with a larger --max-probes",
            self.name
        );
        Err(status::exhausted_by("probes", "--max-probes", why))
    }

    /// Removes all selected probes, or none. Blocks.
    pub fn unregister(&self, selector: &ProbeSelector) -> Result<Changed<Vec<v1::Probe>>, Status> {
        let _alone = self.changing.lock();
        self.remove(&self.ids(selector)?)
    }

    /// Removes probes. The caller holds `changing`. Blocks.
    pub(super) fn remove(&self, ids: &[ProbeId]) -> Result<Changed<Vec<v1::Probe>>, Status> {
        let removal = self.engine.draft_removal(ids);
        let mut removal = removal.map_err(|error| status::change(&error))?;
        let unregister = |stopped: &StoppedVm<'_>| {
            // Reports their events now, so that none comes later.
            self.drain_all();
            let removed = self.engine.unregister_drafted(stopped, &mut removal);
            removed.map_err(|error| status::change(&error))
        };
        let changed = self.change(unregister)?;
        let changed = changed.map(|()| self.told(self.engine.describe_removed(&removal)));
        self.watched.remove(&changed.result);
        self.asked.forget(ids);
        self.sessions.forget(ids);
        Ok(changed)
    }

    /// Removes the probes of a session that was held, unless another stream holds it. Blocks.
    pub fn end_session(&self, held: &Held) {
        let _alone = self.changing.lock();
        let probes = self.sessions.end(held);
        if probes.is_empty() {
            return;
        }
        let name = &self.name;
        match retried(|| self.remove(&probes)) {
            Ok(_) => {
                let count = probes.len();
                tracing::info!(vm = name, "a client has gone, and {count} probes with it");
            }
            Err(why) => {
                let why = why.message();
                tracing::error!(vm = name, "probes of a client that has gone stay: {why}");
            }
        }
    }

    /// Changes a switch of all selected probes or of none, or a switch of the VM. Blocks.
    pub fn update(
        &self,
        request: &v1::UpdateProbesRequest,
    ) -> Result<Changed<Vec<v1::Probe>>, Status> {
        let switch = match request.change {
            Some(Change::Enabled(on)) => Switch::Enabled(on),
            Some(Change::Optimize(on)) => Switch::Optimize(on),
            None => {
                let why = "a switch is missing: `enabled` or `optimize`";
                return Err(status::invalid("change", why));
            }
        };
        let _alone = self.changing.lock();
        let selector = request.selector.as_ref();
        let ids = selector.map(|selector| self.ids(selector)).transpose()?;
        let switching = self.engine.draft_switch(ids.as_deref(), switch);
        let mut switching = switching.map_err(|error| status::change(&error))?;
        let mut update = |stopped: &StoppedVm<'_>| {
            let switched = self.engine.switch_drafted(stopped, &mut switching);
            switched.map_err(|error| status::change(&error))
        };
        let changed = retried(|| self.change(&mut update))?;
        Ok(changed.map(|()| self.told(self.engine.describe_switched(&switching))))
    }

    /// Returns the probes and their counts. Blocks.
    pub fn list_probes(&self) -> Vec<v1::Probe> {
        self.count();
        self.told(self.engine.list())
    }

    /// Returns the protocol's form of probes.
    fn told(&self, probes: Vec<ProbeInfo>) -> Vec<v1::Probe> {
        let probes = self.asked.describe(convert::probes(probes));
        self.sessions.describe(probes)
    }

    /// Returns a page of the probes, and the values that are about all of them. Blocks.
    pub fn list_page(&self, page: &Page<u64>) -> v1::ListProbesResponse {
        self.count();
        let after = page.after().copied().map(ProbeId);
        let found = self.engine.list_after(after, page.size() + 1);
        let (found, next_page_token) = page.cut(found, |probe| probe.id.0);
        v1::ListProbesResponse {
            probes: self.told(found),
            next_page_token,
            armed: !self.engine.is_disarmed(),
            optimizing: self.engine.is_optimizing(),
        }
    }

    /// Brings the counts of all probes up to date. Blocks.
    fn count(&self) {
        self.drain();
        if self.engine.any_call_has_ended(&self.memory) {
            let _alone = self.changing.lock();
            self.stopped(|stopped| self.engine.count_ended(stopped));
        }
    }

    /// Returns the calls that return probes follow now. Blocks.
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

    /// Does as [`Self::change_quietly`], for a client: probes may have begun or ceased to wait.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&StoppedVm<'_>) -> Result<T, Status>,
    ) -> Result<Changed<T>, Status> {
        let changed = self.change_quietly(change)?;
        self.reader.probes_changed();
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

    pub(super) fn ids(&self, selector: &ProbeSelector) -> Result<Vec<ProbeId>, Status> {
        let mut ids: Vec<ProbeId> = selector.ids.iter().copied().map(ProbeId).collect();
        for (index, name) in selector.names.iter().enumerate() {
            let named = self.engine.named(name);
            if named.is_empty() {
                let message = format!("no probe is called `{name}`: list the probes");
                let field = format!("selector.names[{index}]");
                return Err(status::with_field(Code::NotFound, field, message));
            }
            ids.extend(named);
        }
        Ok(ids)
    }
}
