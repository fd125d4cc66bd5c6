//! Registering, removing, enabling and arming probes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use guest_kernel::kprobes::GuestKprobes;
use guest_state::{Access, DebuggingError, GuestVirtAddr, StoppedGuest, Watchpoint};

use super::Engine;
use super::body::KernelBody;
use super::loaded::LoadedModules;
use super::placement::Located;
use super::record::{Presence, Probe, Spot};
use super::table::Table;
use crate::error::{BatchError, ChangeError, RegisterError};
use crate::probe::{Place, ProbeId, ProbeInfo, ProbeKind, ProbeSpec, Strategy};

/// The longest name of a probe, in characters.
const MAX_NAME: usize = 128;
/// How many calls a return probe follows if its user doesn't say
/// (`kernel/kprobes.c`, `register_kretprobe`).
const DEFAULT_MAXACTIVE: u32 = 10;
/// As many as the kernel allows (`KRETPROBE_MAXACTIVE_MAX` of `kernel/trace/trace_probe.h`).
const MAX_MAXACTIVE: u32 = 4096;
/// Symbols below are per-CPU offsets: no address of the kernel is so low.
const LOWEST_KERNEL_ADDRESS: u64 = 0xffff_8000_0000_0000;

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

    /// The probes that were registered after this one, all without one, in their order.
    pub(super) fn after(&self, id: Option<ProbeId>) -> impl Iterator<Item = &Arc<Probe>> {
        let start = id.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.probes.range((start, Bound::Unbounded));
        rest.map(|(_, probe)| probe)
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

/// What a probe was asked to be, found.
enum Target {
    Instruction(Box<Located>),
    Data(Spot),
    /// In a module that isn't loaded.
    Later(Spot),
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
    ) -> Result<Vec<ProbeInfo>, BatchError> {
        let mut registry = self.registry.lock();
        let before = self.table();
        let mut table = Table::clone(&before);
        self.tidy_calls(guest);
        self.make_room(guest, specs.len());
        let kprobes = self.guest_kprobes(guest);
        let is_code = |spec: &ProbeSpec| !matches!(spec.kind, ProbeKind::Watch { .. });
        if kprobes.changing && specs.iter().any(is_code) {
            return Err(RegisterError::KprobesChanging.into());
        }
        let mut added = Vec::with_capacity(specs.len());
        let result = self
            .add_all(
                &registry,
                guest,
                specs,
                (&before, &kprobes),
                &mut table,
                &mut added,
            )
            .and_then(|()| {
                self.wait_for_modules(guest, &mut table, &registry, &added)?;
                let probes = registry.probes().chain(&added);
                Ok(table.watch(probes).map_err(RegisterError::from)?)
            });
        let table = table.changed();
        result?;
        self.switch_stopped::<RegisterError>(guest, &before, &table)?;
        for probe in &added {
            registry.add(probe);
        }
        self.debug_for_no_more(guest);
        Ok(self.infos(&added))
    }

    fn add_all(
        &self,
        registry: &Registry,
        guest: &dyn StoppedGuest,
        specs: &[ProbeSpec],
        known: (&Table, &GuestKprobes),
        table: &mut Table,
        added: &mut Vec<Arc<Probe>>,
    ) -> Result<(), BatchError> {
        let mut names = BTreeSet::new();
        let mut modules = self.loaded_modules(guest);
        for ((index, spec), id) in specs.iter().enumerate().zip(registry.last_id + 1..) {
            let refused = |error| BatchError {
                index: Some(index),
                error,
            };
            let max_active = self.max_active(spec).map_err(refused)?;
            let target = self.target(registry, guest, spec, known, &mut modules);
            let target = target.map_err(refused)?;
            let name = new_name(spec, &target, registry, &mut names).map_err(refused)?;
            let (presence, spot) = match &target {
                Target::Instruction(located) => (Presence::Placed, located.spot.clone()),
                Target::Data(spot) => (Presence::Placed, spot.clone()),
                Target::Later(spot) => (Presence::Pending, spot.clone()),
            };
            let probe = Arc::new(Probe::new(
                ProbeId(id),
                name,
                spec,
                max_active,
                (presence, spot),
            ));
            if let Target::Instruction(located) = target {
                table.add(located.site, Arc::clone(&probe));
                for site in located.exits {
                    table.add(site, Arc::clone(&probe));
                }
            }
            added.push(probe);
        }
        Ok(())
    }

    fn target(
        &self,
        registry: &Registry,
        guest: &dyn StoppedGuest,
        spec: &ProbeSpec,
        (before, kprobes): (&Table, &GuestKprobes),
        modules: &mut LoadedModules<'_>,
    ) -> Result<Target, RegisterError> {
        let (place, kind, memory) = (&spec.place, spec.kind, guest.memory());
        if let ProbeKind::Watch { len, access } = kind {
            return Ok(Target::Data(self.data(place, len, access)?));
        }
        let at_exits = matches!(kind, ProbeKind::Exits { .. });
        let in_module = || RegisterError::Exits {
            place: place.to_string(),
            why: "it is in a module".to_owned(),
        };
        let loaded = match place {
            Place::Symbol {
                module: Some(_), ..
            } if at_exits => return Err(in_module()),
            Place::Symbol {
                module: Some(module),
                ..
            } => match modules.find(module)? {
                Some(loaded) => Some(loaded),
                None => return Ok(Target::Later(later(place))),
            },
            Place::Symbol { module: None, .. } => None,
            Place::Address(at) if self.kernel.symbols.is_text(*at) => None,
            Place::Address(at) => modules.around(*at)?,
        };
        let located = match loaded {
            Some(_) if at_exits => return Err(in_module()),
            Some(loaded) => {
                self.locate(memory, &loaded.body(memory, before, kprobes), place, kind)?
            }
            None => {
                let kernel = KernelBody {
                    kernel: &self.kernel,
                    table: before,
                    memory,
                    kprobes,
                    init_freed: registry.init_freed,
                };
                let mut located = self.locate(memory, &kernel, place, kind)?;
                if at_exits {
                    let (out, exits) = self.ways_out(memory, &kernel, place, &located)?;
                    (located.spot.out, located.exits) = (Some(out), exits);
                }
                located
            }
        };
        Ok(Target::Instruction(located.into()))
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

    /// The data that a watchpoint is asked for on.
    fn data(&self, place: &Place, len: u8, access: Access) -> Result<Spot, RegisterError> {
        let shown = place.to_string();
        let symbols = &self.kernel.symbols;
        let (address, symbol, offset) = match place {
            Place::Address(address) => {
                let found = symbols.resolve(*address);
                match found {
                    Some(found) => (*address, found.symbol.name.to_owned(), found.offset),
                    None => (*address, String::new(), 0),
                }
            }
            Place::Symbol {
                module: Some(_), ..
            } => return Err(RegisterError::WatchModule { place: shown }),
            Place::Symbol { name, offset, .. } => {
                let start = symbols.find(name)?.address;
                let place = shown.clone();
                let address = start
                    .checked_add(*offset)
                    .ok_or(RegisterError::AddressOverflow { place })?;
                if address.0 < LOWEST_KERNEL_ADDRESS {
                    return Err(RegisterError::WatchPerCpu {
                        place: shown,
                        offset: address.0,
                    });
                }
                (address, name.clone(), *offset)
            }
        };
        let watchpoint = Watchpoint {
            address,
            len,
            access,
        };
        watchpoint.check().map_err(|error| match error {
            DebuggingError::Misaligned { address, len } => RegisterError::WatchAlignment {
                place: shown,
                address,
                len,
            },
            _ => RegisterError::WatchLength { place: shown, len },
        })?;
        Ok(Spot {
            address,
            symbol,
            offset,
            instruction: String::new(),
            strategy: Strategy::Watch,
            reason: "a debug register of every vCPU watches it".to_owned(),
            out: None,
        })
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
        let mut registry = self.registry.lock();
        let removed = registry.select(ids)?;
        let before = self.table();
        let mut table = Table::clone(&before);
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
        self.release_milestones(&mut table, &rest);
        table.watch(rest.iter()).map_err(ChangeError::from_watch)?;
        let table = table.changed();
        self.end_calls(guest);
        self.settle(guest.memory());
        let unfinished = self.unfinished(guest, &removed);
        self.switch_stopped::<ChangeError>(guest, &before, &table)?;
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
        self.debug_for_no_more(guest);
        for probe in &removed {
            registry.remove(probe.id);
        }
        Ok(self.infos(&removed))
    }

    /// Enables or disables all of these probes, or none.
    ///
    /// # Errors
    /// A probe doesn't exist, the text can't be written, or there is no debug
    /// register left for a watchpoint.
    pub fn enable(
        &self,
        guest: &dyn StoppedGuest,
        ids: &[ProbeId],
        on: bool,
    ) -> Result<Vec<ProbeInfo>, ChangeError> {
        let registry = self.registry.lock();
        let probes = registry.select(ids)?;
        let were: Vec<_> = probes.iter().map(|probe| probe.is_enabled()).collect();
        for probe in &probes {
            probe.enable(on);
        }
        let before = self.table();
        let mut table = Table::clone(&before);
        table.rearm();
        let result = table
            .watch(registry.probes())
            .map_err(ChangeError::from_watch);
        let table = table.changed();
        let result = result.and_then(|()| self.may_arm(guest, &before, &table));
        let result = result.and_then(|()| self.switch_stopped(guest, &before, &table));
        if let Err(error) = result {
            for (probe, was) in probes.iter().zip(were) {
                probe.enable(was);
            }
            return Err(error);
        }
        self.end_calls(guest);
        self.forget_unseen();
        self.debug_for_no_more(guest);
        Ok(self.infos(&probes))
    }

    /// Takes all breakpoints and watchpoints that users asked for out of the
    /// guest, or puts those of the enabled probes back; the probes' own states
    /// stay as they are.
    ///
    /// # Errors
    /// The text can't be written.
    pub fn arm_all(&self, guest: &dyn StoppedGuest, on: bool) -> Result<(), ChangeError> {
        let _registry = self.registry.lock();
        let before = self.table();
        let mut table = Table::clone(&before);
        table.disarmed = !on;
        table.rearm();
        let table = table.changed();
        self.may_arm(guest, &before, &table)?;
        self.switch_stopped::<ChangeError>(guest, &before, &table)?;
        self.end_calls(guest);
        self.forget_unseen();
        self.debug_for_no_more(guest);
        Ok(())
    }

    /// Whether [`Self::arm_all`] has taken all breakpoints out.
    pub fn is_disarmed(&self) -> bool {
        self.table().disarmed
    }
}

/// Where a probe in a module will be, as far as it is known.
fn later(place: &Place) -> Spot {
    let (symbol, offset) = match place {
        Place::Symbol { name, offset, .. } => (name.clone(), *offset),
        Place::Address(_) => (String::new(), 0),
    };
    Spot {
        address: GuestVirtAddr(0),
        symbol,
        offset,
        instruction: String::new(),
        strategy: Strategy::Emulate,
        reason: "its module is not loaded yet".to_owned(),
        out: None,
    }
}

/// The name that a probe gets, if no other has it; `names` are those of the batch so far.
fn new_name(
    spec: &ProbeSpec,
    target: &Target,
    registry: &Registry,
    names: &mut BTreeSet<String>,
) -> Result<String, RegisterError> {
    let name = name(spec, target)?;
    if let Some(other) = registry.by_name(&name) {
        let (id, address) = (other.id, other.address());
        return Err(RegisterError::AlreadyExists { name, id, address });
    }
    if !names.insert(name.clone()) {
        return Err(RegisterError::DuplicateName { name });
    }
    Ok(name)
}

/// The name that a probe gets.
fn name(spec: &ProbeSpec, target: &Target) -> Result<String, RegisterError> {
    let spot = match target {
        Target::Instruction(located) => &located.spot,
        Target::Data(spot) | Target::Later(spot) => spot,
    };
    let name = match (&spec.name, &spec.place) {
        (Some(name), _) => name.clone(),
        (None, place) => {
            let at = match place {
                Place::Symbol { module, .. } => {
                    let module = module.as_ref().map(|module| format!("{module}:"));
                    // The same whether the module is loaded or not.
                    let offset = if let (Some(_), Place::Symbol { offset, .. }) = (&module, place) {
                        *offset
                    } else {
                        spot.offset
                    };
                    let symbol = &spot.symbol;
                    format!("{}{symbol}+{offset:#x}", module.unwrap_or_default())
                }
                Place::Address(address) => address.to_string(),
            };
            match spec.kind {
                ProbeKind::Instruction { .. } => at,
                ProbeKind::Return { .. } | ProbeKind::Exits { .. } => format!("{at}%return"),
                ProbeKind::Watch { len, .. } => format!("{at}/{len}"),
            }
        }
    };
    let bad = |c: char| c.is_whitespace() || c.is_control();
    // A default name is as long as the symbol's.
    let too_long = spec.name.is_some() && name.chars().count() > MAX_NAME;
    if name.is_empty() || too_long || name.contains(bad) {
        return Err(RegisterError::BadName { name });
    }
    Ok(name)
}
