//! Removing probes.

use std::collections::BTreeSet;
use std::sync::Arc;

use guest_state::{GuestVirtAddr, StoppedGuest};

use crate::engine::Engine;
use crate::engine::changes::plan::{Generation, Plan};
use crate::engine::changes::registry::Registry;
use crate::engine::sites::hit_counters::HitCounters;
use crate::engine::sites::probe::Probe;
use crate::engine::sites::table::Table;
use crate::error::ChangeError;
use crate::probe::{ProbeId, ProbeInfo, ProbeKind};

/// A removal of probes that is worked out while the guest runs.
#[derive(Debug)]
pub struct Removal {
    ids: Vec<ProbeId>,
    removed: Vec<Arc<Probe>>,
    /// The counters of the removed probes, so that the stop needn't look at each probe.
    counters: Vec<HitCounters>,
    plan: Plan,
    /// Addresses at which calls begin that only the removed probes followed.
    ended: BTreeSet<GuestVirtAddr>,
}

impl Engine {
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
        let mut removal = self.draft_removal(ids)?;
        self.unregister_drafted(guest, &mut removal)?;
        Ok(self.describe_removed(&removal))
    }

    /// Works out a removal while the guest runs.
    ///
    /// # Errors
    /// A probe doesn't exist.
    pub fn draft_removal(&self, ids: &[ProbeId]) -> Result<Removal, ChangeError> {
        self.plan_removal(self.generation(), ids)
    }

    /// As [`Self::unregister`], of what was worked out before the guest stopped. Where nothing has changed since,
    /// it only writes. [`Self::describe_removed`] tells of the probes when the guest runs again. What the change
    /// has replaced is freed with the removal.
    ///
    /// # Errors
    /// As of [`Self::unregister`].
    pub fn unregister_drafted(
        &self,
        guest: &dyn StoppedGuest,
        removal: &mut Removal,
    ) -> Result<(), ChangeError> {
        let mut change = self.change(guest);
        let now = change.generation();
        if !removal.plan.before.is(&now) {
            *removal = self.plan_removal(now, &removal.ids)?;
        }
        let removed = &removal.removed;
        self.end_calls(guest);
        self.settle(guest.memory());
        let tables = self.kernel_tables(guest);
        let unfinished = self.reader.unfinished(guest, &tables, removed);
        change.commit::<ChangeError>(&removal.plan)?;
        removal.counters.iter().for_each(HitCounters::close);
        for (probe, times) in unfinished {
            probe.miss_often(times);
        }
        self.returns.forget_removed();
        self.forget_unseen();
        // Where memory can't be read, calls end as they would have.
        let _result = self.forget_followed(guest.memory(), &removal.ended);
        self.tidy_calls(guest);
        Ok(())
    }

    /// What clients are told of the removed probes, as they were until then.
    pub fn describe_removed(&self, removal: &Removal) -> Vec<ProbeInfo> {
        Self::infos(&removal.plan.before.table, &removal.removed)
    }

    fn plan_removal(&self, before: Generation, ids: &[ProbeId]) -> Result<Removal, ChangeError> {
        let removed = before.registry.select(ids)?;
        let mut registry = Registry::clone(&before.registry);
        let mut table = Table::clone(&before.table);
        for probe in &removed {
            registry.remove(probe.id);
            table.switches.forget(probe.id);
        }
        // Each site once, however many of its probes go.
        let places: BTreeSet<_> = removed.iter().flat_map(|it| it.places()).collect();
        for at in places {
            table.change(at, |site| {
                let stays = |probe: &mut Arc<Probe>| registry.get(probe.id).is_some();
                site.probes.retain(stays);
            });
        }
        self.release_milestones(&mut table, registry.probes());
        let watched = table.watch(registry.probes());
        watched.map_err(ChangeError::from_watch)?;
        table.reconsider();
        let follows = |probe: &&Arc<Probe>| matches!(probe.kind, ProbeKind::Return { .. });
        let still = registry.probes().filter(follows).map(|it| it.address());
        let still: BTreeSet<_> = still.collect();
        let ended = removed.iter().filter(follows).map(|it| it.address());
        Ok(Removal {
            ids: ids.to_vec(),
            counters: removed
                .iter()
                .map(|probe| probe.counters().clone())
                .collect(),
            ended: ended.filter(|at| !still.contains(at)).collect(),
            plan: Plan::new(before, Arc::new(registry), table),
            removed,
        })
    }
}
