//! All probes by their numbers and names.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::sites::probe::Probe;
use crate::error::ChangeError;
use crate::probe::ProbeId;

/// All probes, gone ones too.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registry {
    probes: BTreeMap<ProbeId, Arc<Probe>>,
    /// Those of each name, in the order of their registration.
    names: HashMap<Arc<str>, SmallVec<[ProbeId; 1]>>,
    pub(crate) last_id: u64,
}

impl Registry {
    pub(crate) fn probes(&self) -> impl Iterator<Item = &Arc<Probe>> {
        self.probes.values()
    }

    /// The probes of that name, in the order of their registration.
    pub(crate) fn by_name(&self, name: &str) -> impl Iterator<Item = &Arc<Probe>> {
        let ids = self.names.get(name).into_iter().flatten();
        ids.filter_map(|id| self.probes.get(id))
    }

    pub(crate) fn get(&self, id: ProbeId) -> Option<&Arc<Probe>> {
        self.probes.get(&id)
    }

    /// The probes of these numbers, each once.
    pub(crate) fn select(&self, ids: &[ProbeId]) -> Result<Vec<Arc<Probe>>, ChangeError> {
        let mut seen = BTreeSet::new();
        ids.iter()
            .filter(|id| seen.insert(**id))
            .map(|&id| {
                let probe = self.probes.get(&id);
                probe.cloned().ok_or(ChangeError::UnknownProbe { id })
            })
            .collect()
    }

    /// The probes that were registered after `id`, or all if that is `None`, in their order.
    pub(crate) fn after(&self, id: Option<ProbeId>) -> impl Iterator<Item = &Arc<Probe>> {
        let start = id.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.probes.range((start, Bound::Unbounded));
        rest.map(|(_, probe)| probe)
    }

    pub(crate) fn add(&mut self, probe: &Arc<Probe>) {
        self.last_id = self.last_id.max(probe.id.0);
        let named = self.names.entry(Arc::clone(&probe.name)).or_default();
        named.push(probe.id);
        self.probes.insert(probe.id, Arc::clone(probe));
    }

    pub(crate) fn remove(&mut self, id: ProbeId) {
        let Some(probe) = self.probes.remove(&id) else {
            return;
        };
        if let Entry::Occupied(mut named) = self.names.entry(Arc::clone(&probe.name)) {
            // They are in the order of their numbers.
            if let Ok(index) = named.get().binary_search(&id) {
                named.get_mut().remove(index);
            }
            if named.get().is_empty() {
                named.remove();
            }
        }
    }
}
