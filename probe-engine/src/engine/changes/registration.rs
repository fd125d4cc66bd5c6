//! Registering, removing, enabling and arming probes.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use guest_state::StoppedGuest;

use crate::engine::Engine;
use crate::engine::changes::change::Change;
use crate::engine::changes::registry::Registry;
use crate::engine::placement::draft::Draft;
use crate::engine::placement::locate::Located;
use crate::engine::placement::target::{Finder, Target};
use crate::engine::sites::probe::{Presence, Probe};
use crate::engine::sites::table::Table;
use crate::error::{BatchError, ChangeError, RegisterError};
use crate::probe::{ProbeId, ProbeInfo, ProbeKind, ProbeSpec, Switch};

/// How many calls a return probe follows if its user doesn't say
/// (`kernel/kprobes.c`, `register_kretprobe`).
const DEFAULT_MAXACTIVE: u32 = 10;
/// As many as the kernel allows (`KRETPROBE_MAXACTIVE_MAX` of `kernel/trace/trace_probe.h`).
const MAX_MAXACTIVE: u32 = 4096;

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
    ) -> Result<Vec<ProbeInfo>, BatchError> {
        let ids = self.register_drafted(guest, &mut self.draft(guest.memory(), specs))?;
        Ok(self.describe(&ids))
    }

    /// As [`Self::register`], of a batch that was worked out before the guest stopped. What was found out is
    /// taken from it: a second try finds all anew. Returns the numbers of the probes; [`Self::describe`] tells of
    /// them when the guest runs again.
    ///
    /// # Errors
    /// As of [`Self::register`].
    pub fn register_drafted(
        &self,
        guest: &dyn StoppedGuest,
        draft: &mut Draft<'_>,
    ) -> Result<Vec<ProbeId>, BatchError> {
        let specs = draft.specs;
        let mut change = self.change(guest);
        self.tidy_calls(guest);
        self.make_room(guest, specs.len());
        let kprobes = self.guest_kprobes(guest);
        let is_code = |spec: &ProbeSpec| !matches!(spec.kind, ProbeKind::Watch { .. });
        if kprobes.changing && specs.iter().any(is_code) {
            return Err(RegisterError::KprobesChanging.into());
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
        let watched = table.watch(registry.probes().chain(&added));
        watched.map_err(RegisterError::from)?;
        table.reconsider();
        change.commit::<RegisterError>()?;
        for probe in &added {
            change.registry.add(probe);
        }
        Ok(added.iter().map(|probe| probe.id).collect())
    }

    /// What is told of these probes, as far as they are still there.
    pub fn describe(&self, ids: &[ProbeId]) -> Vec<ProbeInfo> {
        let registry = self.registry.lock();
        self.infos(ids.iter().filter_map(|id| registry.get(*id)))
    }

    /// Makes the probes of a batch, and puts them into the table.
    fn add_all(
        &self,
        registry: &Registry,
        mut finder: Finder<'_>,
        draft: &mut Draft<'_>,
        table: &mut Table,
    ) -> Result<Vec<Arc<Probe>>, BatchError> {
        let mut names = HashSet::new();
        let mut added = Vec::with_capacity(draft.specs.len());
        for (index, spec) in draft.specs.iter().enumerate() {
            let refused = |error| BatchError {
                index: Some(index),
                error,
            };
            let max_active = self.max_active(spec).map_err(refused)?;
            let target = finder.find(draft, index, spec).map_err(refused)?;
            let name = new_name(spec, &target, registry, &mut names).map_err(refused)?;
            let (presence, spot, sites) = match target {
                Target::Instruction(located) => {
                    let Located {
                        site, spot, exits, ..
                    } = *located;
                    (Presence::Placed, spot, Some((site, exits)))
                }
                Target::Data(spot) => (Presence::Placed, spot, None),
                Target::Later(spot) => (Presence::Pending, spot, None),
            };
            let id = ProbeId(registry.last_id + 1 + index as u64);
            let probe = Probe::new(id, name, spec, max_active, (presence, spot));
            let probe = Arc::new(probe);
            if let Some((site, exits)) = sites {
                table.add(site, Arc::clone(&probe));
                for site in exits {
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
    names: &mut HashSet<Arc<str>>,
) -> Result<Arc<str>, RegisterError> {
    let name: Arc<str> = target.name(spec)?.into();
    if let Some(other) = registry.by_name(&name) {
        let (id, address) = (other.id, other.address());
        let name = name.to_string();
        return Err(RegisterError::AlreadyExists { name, id, address });
    }
    if !names.insert(Arc::clone(&name)) {
        let name = name.to_string();
        return Err(RegisterError::DuplicateName { name });
    }
    Ok(name)
}
