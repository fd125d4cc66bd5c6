//! What a registration changes: the new probes, and their sites.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::actions::check::check;
use crate::engine::changes::names::Names;
use crate::engine::changes::plan::{Generation, Plan};
use crate::engine::changes::registry::Registry;
use crate::engine::placement::locate::Located;
use crate::engine::placement::target::Target;
use crate::engine::sites::additions::Additions;
use crate::engine::sites::hit_counters::HitCounters;
use crate::engine::sites::probe::{Presence, Probe};
use crate::engine::sites::table::Table;
use crate::error::{BatchError, RegisterError};
use crate::probe::{MAXACTIVE_MAX, ProbeId, ProbeKind, ProbeSpec};

/// How many calls a return probe follows if its user doesn't say
/// (`kernel/kprobes.c`, `register_kretprobe`).
const DEFAULT_MAXACTIVE: u32 = 10;

/// A batch of new probes, and the change by which they come.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) plan: Plan,
    pub(crate) ids: Vec<ProbeId>,
}

impl Registration {
    /// Plans the change from a generation to a table with these probes on its sites.
    pub(crate) fn new(
        before: &Generation,
        mut table: Table,
        added: &[Arc<Probe>],
    ) -> Result<Self, RegisterError> {
        let mut registry = Registry::clone(&before.registry);
        for probe in added {
            registry.add(probe);
        }
        table.watch(registry.probes())?;
        table.reconsider();
        Ok(Self {
            plan: Plan::new(before.clone(), Arc::new(registry), table),
            ids: added.iter().map(|probe| probe.id).collect(),
        })
    }
}

impl Engine {
    /// Works out a registration while the guest runs, where all targets are known.
    pub(crate) fn plan_registration(
        &self,
        before: &Generation,
        specs: &[ProbeSpec],
        located: &[Option<Box<Located>>],
    ) -> Option<Registration> {
        let all: Option<Vec<&Box<Located>>> = located.iter().map(Option::as_ref).collect();
        let all = all?;
        if self.unwinds_modules(specs.iter().map(|spec| &spec.options))
            && !before.table.waits_for_modules()
        {
            // To wait for modules takes breakpoints, whose places aren't looked for here.
            return None;
        }
        let mut table = Table::clone(&before.table);
        let find = |index: usize, _: &ProbeSpec| Ok(Target::Instruction(all[index].clone()));
        // What is refused is looked at again when the guest stands still.
        let added = self.add_all(&before.registry, specs, find, &mut table);
        Registration::new(before, table, &added.ok()?).ok()
    }

    /// Makes the probes of a batch, and puts them into the table.
    pub(crate) fn add_all(
        &self,
        registry: &Registry,
        specs: &[ProbeSpec],
        mut find: impl FnMut(usize, &ProbeSpec) -> Result<Target, RegisterError>,
        table: &mut Table,
    ) -> Result<Vec<Arc<Probe>>, BatchError> {
        let mut names = Names::new(registry);
        let mut added = Vec::with_capacity(specs.len());
        let mut additions = Additions::default();
        let counters = HitCounters::of_batch(specs.len());
        for ((index, spec), counters) in specs.iter().enumerate().zip(counters) {
            let refused = |error| BatchError {
                index: Some(index),
                error,
            };
            let max_active = self.max_active(spec).map_err(refused)?;
            let target = find(index, spec).map_err(refused)?;
            let beyond_entry = target.spot().beyond_entry;
            check(&spec.options.actions, spec.kind, beyond_entry)
                .map_err(|why| RegisterError::Action {
                    place: spec.place.to_string(),
                    why,
                })
                .map_err(refused)?;
            let name = names.take(spec, &target).map_err(refused)?;
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
            let probe = Probe::new(id, name, spec, max_active, (presence, spot), counters);
            let probe = Arc::new(probe);
            table.switches.add(id, spec);
            if let Some((site, exits)) = sites {
                additions.add(site, Arc::clone(&probe));
                for site in exits {
                    additions.add(site, Arc::clone(&probe));
                }
            }
            added.push(probe);
        }
        additions.put_into(table);
        Ok(added)
    }

    fn max_active(&self, spec: &ProbeSpec) -> Result<u32, RegisterError> {
        let (maxactive, has_place) = match spec.kind {
            ProbeKind::Return { maxactive } => (maxactive, self.returns.trampoline().is_some()),
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
            Some(wanted) if wanted > MAXACTIVE_MAX => Err(RegisterError::MaxActive {
                place: place(),
                wanted,
                limit: MAXACTIVE_MAX,
            }),
            Some(wanted) => Ok(wanted),
            None => Ok(DEFAULT_MAXACTIVE.max(2 * self.vcpus)),
        }
    }
}
