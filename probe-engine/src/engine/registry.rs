//! Registering and removing probes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::Engine;
use super::placement::Spot;
use super::table::{Probe, Site, Table};
use crate::addr::{GuestVirtAddr, ProbeId};
use crate::error::{RegisterError, UnregisterError};
use crate::guest::{GuestMemory, MemoryError};
use crate::probe::{Place, ProbeInfo, ProbeSpec, ProbeState};

/// The function in which the kernel frees its init text (`init/main.c`,
/// `arch/x86/mm/init.c`); it is not in init text itself.
const FREES_INIT_TEXT: &str = "free_initmem";

/// The longest name of a probe, in characters.
const MAX_NAME: usize = 128;

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

    fn add(&mut self, probe: &Arc<Probe>) {
        self.last_id = self.last_id.max(probe.id.0);
        self.names.insert(probe.name().to_owned(), probe.id);
        self.probes.insert(probe.id, Arc::clone(probe));
    }

    fn remove(&mut self, id: ProbeId) {
        if let Some(probe) = self.probes.remove(&id) {
            self.names.remove(probe.name());
        }
    }
}

impl Engine {
    /// Registers all of a batch or nothing of it. The caller holds every vCPU
    /// stopped. The answer is in the order of the request.
    ///
    /// # Errors
    /// The first probe that can't be registered, and why.
    pub fn register(
        &self,
        memory: &dyn GuestMemory,
        specs: &[ProbeSpec],
    ) -> Result<Vec<ProbeInfo>, RegisterError> {
        let mut registry = self.registry();
        let before = self.table();
        let mut table = Table::clone(&before);
        let mut added: Vec<Arc<Probe>> = Vec::new();
        let mut planted = Vec::new();
        let mut names = BTreeSet::new();
        for (id, spec) in (registry.last_id + 1..).zip(specs) {
            let spot = self.locate(&before, registry.init_freed, memory, &spec.place)?;
            let name = name(spec, &spot)?;
            if let Some(other) = registry.by_name(&name) {
                let (id, address) = (other.id, other.address());
                return Err(RegisterError::AlreadyExists { name, id, address });
            }
            if !names.insert(name.clone()) {
                return Err(RegisterError::DuplicateName { name });
            }
            let probe = Arc::new(Probe::new(ProbeInfo {
                id: ProbeId(id),
                name,
                address: spot.site.virt,
                symbol: spot.symbol,
                offset: spot.offset,
                instruction: spot.instruction,
                strategy: spot.strategy,
                reason: spot.reason.to_owned(),
                hits: 0,
                missed: 0,
                state: ProbeState::Armed,
            }));
            let mut site = if let Some(site) = table.site(spot.site.virt) {
                Site::clone(site)
            } else {
                planted.push(spot.site.virt);
                spot.site
            };
            site.probes.push(Arc::clone(&probe));
            table.insert(site);
            added.push(probe);
        }
        self.arm(memory, table, &planted, &before)?;
        for probe in &added {
            registry.add(probe);
        }
        Ok(added.iter().map(|probe| probe.info()).collect())
    }

    /// Removes all of these probes or none, and tells how they ended. The caller
    /// holds every vCPU stopped. A number given twice counts once.
    ///
    /// # Errors
    /// A probe doesn't exist, or the text can't be restored.
    pub fn unregister(
        &self,
        memory: &dyn GuestMemory,
        ids: &[ProbeId],
    ) -> Result<Vec<ProbeInfo>, UnregisterError> {
        let mut registry = self.registry();
        let mut table = Table::clone(&self.table());
        let mut removed: Vec<Arc<Probe>> = Vec::new();
        let mut lifted: Vec<Arc<Site>> = Vec::new();
        let mut seen = BTreeSet::new();
        for &id in ids {
            let probe = registry
                .probes
                .get(&id)
                .ok_or(UnregisterError::UnknownProbe { id })?;
            if !seen.insert(id) {
                continue;
            }
            removed.push(Arc::clone(probe));
            let Some(site) = table.site(probe.address()).map(Arc::clone) else {
                continue;
            };
            let mut rest = Site::clone(&site);
            rest.probes.retain(|probe| probe.id != id);
            if rest.is_unused() {
                table.remove(site.virt);
                lifted.push(site);
            } else {
                table.insert(rest);
            }
        }
        for (done, site) in lifted.iter().enumerate() {
            if let Err(error) = site.lift(memory) {
                // The table still has them all.
                for site in &lifted[..done] {
                    site.plant(memory)?;
                }
                return Err(error.into());
            }
        }
        self.publish(table);
        for probe in &removed {
            registry.remove(probe.id);
        }
        Ok(removed.iter().map(|probe| probe.info()).collect())
    }

    /// Prepares the engine for what the kernel does to its own text: waits for it
    /// to free its init text, to withdraw the probes there in time. Call it
    /// before the guest's first instruction, or as soon as the image map is known.
    ///
    /// Returns whether there is such a moment to wait for: `false` for a kernel
    /// without `free_initmem`, where nobody should probe init text.
    ///
    /// # Errors
    /// As for a probe there.
    pub fn arm_milestones(&self, memory: &dyn GuestMemory) -> Result<bool, RegisterError> {
        if self.symbols.by_name(FREES_INIT_TEXT).next().is_none() {
            return Ok(false);
        }
        let registry = self.registry();
        let place = Place::Symbol {
            name: FREES_INIT_TEXT.to_owned(),
            offset: 0,
        };
        let before = self.table();
        let spot = self.locate(&before, registry.init_freed, memory, &place)?;
        let at = spot.site.virt;
        let (site, planted) = match before.site(at) {
            Some(site) => (Site::clone(site), vec![]),
            None => (spot.site, vec![at]),
        };
        let mut table = Table::clone(&before);
        table.insert(Site {
            milestone: true,
            ..site
        });
        self.arm(memory, table, &planted, &before)?;
        Ok(true)
    }

    /// Publishes a table, then writes the breakpoints that are new in it.
    fn arm(
        &self,
        memory: &dyn GuestMemory,
        table: Table,
        planted: &[GuestVirtAddr],
        before: &Table,
    ) -> Result<(), MemoryError> {
        let sites: Vec<_> = planted
            .iter()
            .filter_map(|at| table.site(*at).cloned())
            .collect();
        self.publish(table);
        for (done, site) in sites.iter().enumerate() {
            if let Err(error) = site.plant(memory) {
                for site in &sites[..done] {
                    site.lift(memory)?;
                }
                self.publish(before.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// The kernel is about to free its init text: withdraws all breakpoints from
    /// it, and the one that told so.
    pub(super) fn release_init_text(&self, memory: &dyn GuestMemory) {
        let mut registry = self.registry();
        let before = self.table();
        let init_text = self.symbols.init_text();
        let mut table = Table::clone(&before);
        for site in before.sites() {
            if init_text.contains(&site.virt) {
                for probe in &site.probes {
                    probe.set_gone();
                }
                table.remove(site.virt);
            } else if site.milestone {
                table.insert(Site {
                    milestone: false,
                    ..Site::clone(site)
                });
                if site.probes.is_empty() {
                    table.remove(site.virt);
                }
            }
            if table.site(site.virt).is_none() {
                // What can't be written isn't memory any more, and holds no breakpoint.
                let _lifted = site.lift(memory);
            }
        }
        registry.init_freed = true;
        self.publish(table);
    }
}

/// The name that a probe gets.
fn name(spec: &ProbeSpec, spot: &Spot) -> Result<String, RegisterError> {
    let name = match (&spec.name, &spec.place) {
        (Some(name), _) => name.clone(),
        (None, Place::Symbol { .. }) => format!("{}+{:#x}", spot.symbol, spot.offset),
        (None, Place::Address(address)) => return Ok(address.to_string()),
    };
    let bad = |c: char| c.is_whitespace() || c.is_control();
    // A default name is as long as the symbol's.
    let too_long = spec.name.is_some() && name.chars().count() > MAX_NAME;
    if name.is_empty() || too_long || name.contains(bad) {
        return Err(RegisterError::BadName { name });
    }
    Ok(name)
}
