//! Registering, removing, enabling and arming probes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use guest_state::StoppedGuest;

use super::Engine;
use super::change::Change;
use super::draft::Draft;
use super::record::{Presence, Probe};
use super::table::Table;
use super::target::{Finder, Target};
use crate::error::{ChangeError, RegisterError};
use crate::probe::{ProbeId, ProbeInfo, ProbeKind, ProbeSpec, Switch};

/// How many calls a return probe follows if its user doesn't say
/// (`kernel/kprobes.c`, `register_kretprobe`).
const DEFAULT_MAXACTIVE: u32 = 10;
/// As many as the kernel allows (`KRETPROBE_MAXACTIVE_MAX` of `kernel/trace/trace_probe.h`).
const MAX_MAXACTIVE: u32 = 4096;

/// All probes, gone ones too.
#[derive(Debug, Default)]
pub(super) struct Registry {
    probes: BTreeMap<ProbeId, Arc<Probe>>,
    names: HashMap<String, ProbeId>,
    last_id: u64,
    pub(super) init_freed: bool,
}

impl Registry {
    pub(super) fn probes(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.probes.values()
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Arc<Probe>> {
        self.probes.get(self.names.get(name)?)
    }

    /// The probes of these numbers, each once.
    pub(super) fn select(&self, ids: &[ProbeId]) -> Result<Vec<Arc<Probe>>, ChangeError> {
        let mut seen = BTreeSet::new();
        ids.iter()
            .filter(|id| seen.insert(**id))
            .map(|&id| {
                let probe = self.probes.get(&id);
                probe.cloned().ok_or(ChangeError::UnknownProbe { id })
            })
            .collect()
    }

    fn add(&mut self, probe: &Arc<Probe>) {
        self.last_id = self.last_id.max(probe.id.0);
        self.names.insert(probe.name.clone(), probe.id);
        self.probes.insert(probe.id, Arc::clone(probe));
    }

    fn remove(&mut self, id: ProbeId) {
        if let Some(probe) = self.probes.remove(&id) {
            self.names.remove(&probe.name);
        }
    }
}

impl Engine {
    /// Registers all of a batch or nothing of it. The answer is in the order of
    /// the request.
    ///
    /// # Errors
    /// The first probe that can't be registered, and why.
    pub fn register(
        &self,
        guest: &dyn StoppedGuest,
        specs: &[ProbeSpec],
    ) -> Result<Vec<ProbeInfo>, RegisterError> {
        self.register_drafted(guest, &mut self.draft(guest.memory(), specs))
    }

    /// As [`Self::register`], of a batch that was worked out before the guest stopped. What it was found out
    /// is taken from it; with a second try all is found anew.
    ///
    /// # Errors
    /// As of [`Self::register`].
    pub fn register_drafted(
        &self,
        guest: &dyn StoppedGuest,
        draft: &mut Draft<'_>,
    ) -> Result<Vec<ProbeInfo>, RegisterError> {
        let specs = draft.specs;
        let mut change = self.change(guest);
        self.tidy_calls(guest);
        self.make_room(guest, specs.len());
        let kprobes = self.guest_kprobes(guest);
        let is_code = |spec: &ProbeSpec| !matches!(spec.kind, ProbeKind::Watch { .. });
        if kprobes.changing && specs.iter().any(is_code) {
            return Err(RegisterError::KprobesChanging);
        }
        let Change {
            registry,
            before,
            table,
            ..
        } = &mut change;
        let finder = Finder::new(self, guest, before, &kprobes, registry.init_freed);
        let added = self.add_all(registry, finder, draft, table)?;
        self.wait_for_modules(guest, table, registry, &added)?;
        table.watch(registry.probes().chain(&added))?;
        table.reconsider();
        change.commit::<RegisterError>()?;
        for probe in &added {
            change.registry.add(probe);
        }
        Ok(self.infos(&added))
    }

    /// Makes the probes of a batch, and puts them into the table.
    fn add_all(
        &self,
        registry: &Registry,
        mut finder: Finder<'_>,
        draft: &mut Draft<'_>,
        table: &mut Table,
    ) -> Result<Vec<Arc<Probe>>, RegisterError> {
        let mut names = BTreeSet::new();
        let mut added = Vec::with_capacity(draft.specs.len());
        for (index, spec) in draft.specs.iter().enumerate() {
            let max_active = self.max_active(spec)?;
            let target = finder.find(draft, index, spec)?;
            let name = new_name(spec, &target, registry, &mut names)?;
            let presence = match &target {
                Target::Instruction(_) | Target::Data(_) => Presence::Placed,
                Target::Later(_) => Presence::Pending,
            };
            let id = ProbeId(registry.last_id + 1 + index as u64);
            let spot = (presence, target.spot().clone());
            let probe = Arc::new(Probe::new(id, name, spec, max_active, spot));
            if let Target::Instruction(located) = target {
                table.add(located.site, Arc::clone(&probe));
                for site in located.exits {
                    table.add(site, Arc::clone(&probe));
                }
            }
            added.push(probe);
        }
        Ok(added)
    }

    fn max_active(&self, spec: &ProbeSpec) -> Result<u32, RegisterError> {
        let (maxactive, has_place) = match spec.kind {
            ProbeKind::Return { maxactive } => {
                (maxactive, self.returns.lock().trampoline.is_some())
            }
            ProbeKind::Exits { maxactive } => (maxactive, true),
            ProbeKind::Instruction { .. } | ProbeKind::Watch { .. } => return Ok(0),
        };
        let place = || spec.place.to_string();
        if !has_place {
            return Err(RegisterError::NoArena {
                place: place(),
                why: self.arena_note(),
            });
        }
        let wanted = maxactive.filter(|wanted| *wanted != 0);
        match wanted {
            Some(wanted) if wanted > MAX_MAXACTIVE => Err(RegisterError::MaxActive {
                place: place(),
                wanted,
                limit: MAX_MAXACTIVE,
            }),
            Some(wanted) => Ok(wanted),
            None => Ok(DEFAULT_MAXACTIVE.max(2 * self.vcpus)),
        }
    }

    /// Removes all of these probes or none, and tells how they ended. A number
    /// given twice counts once.
    ///
    /// # Errors
    /// A probe doesn't exist, or the text can't be restored.
    pub fn unregister(
        &self,
        guest: &dyn StoppedGuest,
        ids: &[ProbeId],
    ) -> Result<Vec<ProbeInfo>, ChangeError> {
        let mut change = self.change(guest);
        let Change {
            registry, table, ..
        } = &mut change;
        let removed = registry.select(ids)?;
        for probe in &removed {
            for at in probe.places() {
                table.change(at, |site| {
                    site.probes.retain(|other| other.id != probe.id);
                });
            }
        }
        let gone: BTreeSet<_> = removed.iter().map(|probe| probe.id).collect();
        let rest: Vec<_> = registry
            .probes()
            .filter(|probe| !gone.contains(&probe.id))
            .cloned()
            .collect();
        self.release_milestones(table, &rest);
        table.watch(rest.iter()).map_err(ChangeError::from_watch)?;
        table.reconsider();
        self.end_calls(guest);
        self.settle(guest.memory());
        let unfinished = self.unfinished(guest, &removed);
        change.commit::<ChangeError>()?;
        for (probe, times) in removed.iter().zip(unfinished) {
            probe.miss_often(times);
            probe.remove();
        }
        self.forget_calls(&gone);
        self.forget_unseen();
        let followed = |probe: &&Arc<Probe>| matches!(probe.kind, ProbeKind::Return { .. });
        let still: BTreeSet<_> = rest
            .iter()
            .filter(followed)
            .map(|it| it.address())
            .collect();
        let ended = removed.iter().filter(followed).map(|it| it.address());
        let ended = ended.filter(|at| !still.contains(at)).collect();
        // Where memory can't be read, calls end as they would have.
        let _result = self.forget_followed(guest.memory(), &ended);
        self.tidy_calls(guest);
        for probe in &removed {
            change.registry.remove(probe.id);
        }
        Ok(self.infos(&removed))
    }

    /// Switches all of these probes, or none.
    ///
    /// # Errors
    /// A probe doesn't exist, the text can't be written, or there is no debug
    /// register left for a watchpoint.
    pub fn switch(
        &self,
        guest: &dyn StoppedGuest,
        ids: &[ProbeId],
        switch: Switch,
    ) -> Result<Vec<ProbeInfo>, ChangeError> {
        let mut change = self.change(guest);
        let probes = change.registry.select(ids)?;
        let were: Vec<_> = probes.iter().map(|probe| probe.set(switch)).collect();
        let result = self.commit_switch(&mut change);
        if result.is_err() {
            for (probe, was) in probes.iter().zip(were) {
                probe.set(was);
            }
        }
        result.map(|()| self.infos(&probes))
    }

    /// Switches all probes at once: takes all breakpoints and watchpoints that users asked for out of the guest,
    /// or makes breakpoints of all jumps. The probes' own switches stay as they are, and count again as soon as
    /// this one is on.
    ///
    /// # Errors
    /// The text can't be written.
    pub fn switch_all(&self, guest: &dyn StoppedGuest, switch: Switch) -> Result<(), ChangeError> {
        let mut change = self.change(guest);
        match switch {
            Switch::Enabled(on) => change.table.disarmed = !on,
            Switch::Optimize(on) => change.table.jumpless = !on,
        }
        self.commit_switch(&mut change)
    }

    /// Commits what switches say now.
    fn commit_switch(&self, change: &mut Change<'_>) -> Result<(), ChangeError> {
        let guest = change.guest;
        let Change {
            registry,
            before,
            table,
            ..
        } = change;
        table.rearm();
        let watched = table.watch(registry.probes());
        watched.map_err(ChangeError::from_watch)?;
        table.reconsider();
        self.may_arm(guest, before, table)?;
        change.commit::<ChangeError>()?;
        self.end_calls(guest);
        self.forget_unseen();
        Ok(())
    }

    /// Whether [`Self::switch_all`] has taken all breakpoints out.
    pub fn is_disarmed(&self) -> bool {
        self.table().disarmed
    }
}

/// The name that a probe gets, if no other has it; `names` are those of the batch so far.
fn new_name(
    spec: &ProbeSpec,
    target: &Target,
    registry: &Registry,
    names: &mut BTreeSet<String>,
) -> Result<String, RegisterError> {
    let name = target.name(spec)?;
    if let Some(other) = registry.by_name(&name) {
        let (id, address) = (other.id, other.address());
        return Err(RegisterError::AlreadyExists { name, id, address });
    }
    if !names.insert(name.clone()) {
        return Err(RegisterError::DuplicateName { name });
    }
    Ok(name)
}
