//! What the kernel does to its own text and the engine has to know: it frees its init text, loads
//! and frees modules. The engine waits for that with breakpoints of its own, as for oopses.

use std::sync::Arc;

use guest_state::{GuestMemory, GuestVirtAddr, StoppedGuest, Vcpu};

use crate::engine::Engine;
use crate::engine::changes::plan::{Generation, Plan};
use crate::engine::placement::body::KernelBody;
use crate::engine::placement::locate::Located;
use crate::engine::sites::additions::Additions;
use crate::engine::sites::probe::{Presence, Probe};
use crate::engine::sites::site::{Milestone, Site};
use crate::engine::sites::table::Table;
use crate::error::RegisterError;
use crate::event::EventSink;
use crate::probe::{Options, Place, ProbeKind};

/// The function in which the kernel frees its init text (`init/main.c`,
/// `arch/x86/mm/init.c`); it is not in init text itself.
const FREES_INIT_TEXT: &str = "free_initmem";
/// How far into it the breakpoint may be, in bytes: before its first branch, and
/// before it frees anything.
const EARLY: u64 = 32;
/// Functions of `kernel/module/main.c` and `kernel/trace/ftrace.c` and what their
/// entry means; the first argument is the module.
const MODULE_MILESTONES: [(&str, Milestone); 3] = [
    ("do_init_module", Milestone::ModuleLoaded),
    ("ftrace_free_mem", Milestone::ModuleInitDone),
    ("free_module", Milestone::ModuleFreed),
];

impl Engine {
    /// Prepares the engine for what the kernel does to its own text: waits for it
    /// to free its init text, to withdraw the probes there in time. Call it
    /// before the guest's first instruction, or as soon as the image map is known.
    ///
    /// Returns true if there is such a moment to wait for. A kernel without `free_initmem` has
    /// none, so init text shouldn't be probed there.
    ///
    /// # Errors
    /// As for a probe there.
    pub fn arm_milestones(&self, guest: &dyn StoppedGuest) -> Result<bool, RegisterError> {
        let symbols = &self.kernel.symbols;
        if symbols.by_name(FREES_INIT_TEXT).next().is_none() {
            return Ok(false);
        }
        let mut change = self.change(guest);
        let before = change.generation();
        let mut table = Table::clone(&before.table);
        let wanted = [(FREES_INIT_TEXT, Milestone::FreesInitText)];
        self.wait_for(guest, &mut table, &wanted)?;
        table.reconsider();
        let registry = Arc::clone(&before.registry);
        change.commit::<RegisterError>(&Plan::new(before, registry, table))?;
        Ok(true)
    }

    /// Returns true if a probe with one of these options may have to unwind a stack through modules.
    pub(crate) fn unwinds_modules<'o>(&self, mut all: impl Iterator<Item = &'o Options>) -> bool {
        let is_able = self.kernel.modules.is_ok()
            && matches!(&self.kernel.unwind, Ok(unwinder) if unwinder.table().is_some());
        is_able && all.any(|options| options.stack != 0)
    }

    /// Waits for modules to come and go if one of these probes is in one, or has stacks that may lead through one.
    /// Where the engine can't wait for that, stacks do without the modules' tables.
    pub(crate) fn wait_for_modules(
        &self,
        guest: &dyn StoppedGuest,
        table: &mut Table,
        probes: &[Arc<Probe>],
    ) -> Result<(), RegisterError> {
        let in_module = |probe: &Arc<Probe>| is_in_module(probe, table);
        if probes.iter().any(in_module) {
            return self.wait_for(guest, table, &MODULE_MILESTONES);
        }
        if self.unwinds_modules(probes.iter().map(|probe| &probe.options)) {
            let mut waiting = table.clone();
            if self
                .wait_for(guest, &mut waiting, &MODULE_MILESTONES)
                .is_ok()
            {
                *table = waiting;
            }
        }
        Ok(())
    }

    /// Waits no more for modules if none of these probes is in one, or may have to unwind through one.
    pub(crate) fn release_milestones<'p>(
        &self,
        table: &mut Table,
        mut probes: impl Iterator<Item = &'p Arc<Probe>>,
    ) {
        let needs = |probe: &Arc<Probe>| {
            is_in_module(probe, table) || self.unwinds_modules([&probe.options].into_iter())
        };
        if probes.any(needs) {
            return;
        }
        table.wait_no_more(Milestone::is_of_module);
    }

    fn wait_for(
        &self,
        guest: &dyn StoppedGuest,
        table: &mut Table,
        wanted: &[(&str, Milestone)],
    ) -> Result<(), RegisterError> {
        let symbols = &self.kernel.symbols;
        let kprobes = self.guest_kprobes(guest);
        for (name, milestone) in wanted {
            if symbols.by_name(name).next().is_none() {
                return Err(RegisterError::NoModules {
                    why: format!("the kernel has no function {name}, by which they are followed"),
                });
            }
            let kernel = KernelBody {
                kernel: &self.kernel,
                table,
                memory: guest.memory(),
                kprobes: &kprobes,
            };
            let located = match milestone {
                Milestone::FreesInitText => self.early_in(guest.memory(), &kernel, name)?,
                _ => self.locate(guest.memory(), &kernel, &entry(name), ProbeKind::PRE)?,
            };
            self.wait_at(table, located, *milestone);
        }
        Ok(())
    }

    pub(crate) fn wait_at(&self, table: &mut Table, located: Located, milestone: Milestone) {
        let mut site = match table.site(located.site.virt) {
            Some(site) => Site::clone(site),
            None => located.site,
        };
        site.milestone = Some(milestone);
        table.insert(site);
    }

    /// The first instruction of a function that can be probed: the kernel may yet
    /// patch the very first.
    fn early_in(
        &self,
        memory: &dyn GuestMemory,
        kernel: &KernelBody<'_>,
        name: &str,
    ) -> Result<Located, RegisterError> {
        let first = self.locate(memory, kernel, &entry(name), ProbeKind::PRE);
        let later = |offset| Place::Symbol {
            module: None,
            name: name.to_owned(),
            offset,
        };
        match first {
            Err(RegisterError::Blacklisted { .. }) => (1..EARLY)
                .find_map(|offset| {
                    self.locate(memory, kernel, &later(offset), ProbeKind::PRE)
                        .ok()
                })
                .map_or(first, Ok),
            first => first,
        }
    }

    /// Does what is due at a milestone that the guest is at, on this vCPU; the others may run.
    pub(crate) fn reach(
        &self,
        milestone: Milestone,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) {
        if milestone.is_of_module() {
            if self.table().has_jumps() {
                // The stacks of their records are unwound while the module is there.
                self.drain(memory);
            }
            self.known_modules.forget();
        }
        match milestone {
            Milestone::FreesInitText => {
                self.release_init_text(memory);
                self.merger.may_jump();
            }
            Milestone::ModuleLoaded => {
                self.place_in_module(memory, vcpu);
                self.merger.may_jump();
            }
            Milestone::ModuleInitDone => {
                let registers = vcpu.registers();
                // RDI is null for the kernel's own init text.
                if registers.rdi != 0 {
                    let range = GuestVirtAddr(registers.rsi)..GuestVirtAddr(registers.rdx);
                    let is_lost = |site: &Site| site.module.is_some() && range.contains(&site.virt);
                    self.withdraw(memory, is_lost, |_| {});
                }
            }
            Milestone::ModuleFreed => self.withdraw_module(memory, vcpu),
            Milestone::EndsTask => self.ends_task(memory, vcpu),
            // `pass` does that, in the place of the instruction.
            Milestone::ShowsText => {}
        }
    }

    /// Returns true if the guest is about to free a module that has jumps, by the function that this vCPU enters. The
    /// jumps may be taken out of the module's text only while no other vCPU runs.
    pub(crate) fn frees_jumps(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> bool {
        let table = self.table();
        let site = table.site(GuestVirtAddr(vcpu.registers().rip));
        let frees = |site: &Arc<Site>| site.milestone == Some(Milestone::ModuleFreed);
        if !site.is_some_and(frees) {
            return false;
        }
        let has_jump = |name: &str| {
            let is_jump = |site: &Arc<Site>| {
                let in_text = site.jump().is_some() || table.held(site.virt).is_some();
                in_text && site.module.as_deref() == Some(name)
            };
            table.sites().chain(table.all_held()).any(is_jump)
        };
        self.module_name(memory, vcpu)
            .is_some_and(|name| has_jump(&name))
    }

    /// Withdraws all breakpoints from a module, whose text is about to be freed. No task executes the text any more,
    /// nor its copies in a detour: the kernel relies on that as well.
    pub(crate) fn withdraw_module(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        if let Some(name) = self.module_name(memory, vcpu) {
            let is_lost = |site: &Site| site.module.as_deref() == Some(&*name);
            self.withdraw(memory, is_lost, |_| {});
        }
    }

    /// Withdraws all breakpoints from the init text, which the kernel is about to free, and the
    /// breakpoint of this milestone.
    fn release_init_text(&self, memory: &dyn GuestMemory) {
        let init_text = self.kernel.symbols.init_text();
        let is_lost = |site: &Site| init_text.contains(&site.virt);
        self.withdraw(memory, is_lost, |table| {
            table.init_freed = true;
            table.wait_no_more(|milestone| milestone == Milestone::FreesInitText);
        });
    }

    /// Lifts the breakpoints of these sites, whose text is about to be freed, and makes their
    /// probes gone ones. `more` changes one more thing in the table.
    fn withdraw(
        &self,
        memory: &dyn GuestMemory,
        is_lost: impl Fn(&Site) -> bool,
        more: impl FnOnce(&mut Table),
    ) {
        let registry = self.registry.lock();
        let before = self.generation_of(&registry);
        let mut table = Table::clone(&before.table);
        for site in before.table.sites().filter(|site| is_lost(site)) {
            for probe in &site.probes {
                probe.set_gone();
                // A probe with several breakpoints loses all of them.
                for at in probe.places().into_iter().filter(|at| *at != site.virt) {
                    table.change(at, |other| other.probes.retain(|it| it.id != probe.id));
                }
            }
            table.remove(site.virt);
            self.arena.discard_copy(site.virt);
        }
        more(&mut table);
        self.apply_running(memory, before, table);
        let table = self.table();
        let kept: Vec<_> = table
            .all_held()
            .iter()
            .filter(|site| !is_lost(site))
            .cloned()
            .collect();
        if kept.len() < table.all_held().len() {
            // What the guest has saved of a jump goes with the text.
            self.publish(&table.holding(kept));
        }
    }

    /// Changes the breakpoints while the guest runs. There is no client to be told of a failure,
    /// and text that can't be written isn't memory any more and holds no breakpoint.
    fn apply_running(&self, memory: &dyn GuestMemory, before: Generation, mut table: Table) {
        table.reconsider();
        let registry = Arc::clone(&before.registry);
        let plan = Plan::new(before, registry, table);
        if self.apply(memory, &plan).is_err() {
            self.publish(&plan.after.table);
        }
        self.forget_unseen();
    }

    /// Places the probes that wait for a module, whose text is complete now.
    fn place_in_module(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        // Few modules have probes, and reading all of one takes its time.
        let Some(name) = self.module_name(memory, vcpu) else {
            return;
        };
        let registry = self.registry.lock();
        let waits = |probe: &&Arc<Probe>| {
            probe.module() == Some(&name) && probe.presence() != Presence::Placed
        };
        let waiting: Vec<_> = registry.probes().filter(waits).collect();
        if waiting.is_empty() {
            return;
        }
        let loaded = match self.module_at(memory, vcpu) {
            Ok(loaded) => loaded,
            Err(why) => {
                waiting.iter().for_each(|probe| probe.set_reason(&why));
                return;
            }
        };
        let before = self.generation_of(&registry);
        let mut table = Table::clone(&before.table);
        let kprobes = self.known_kprobes(memory);
        let mut additions = Additions::default();
        for probe in waiting {
            let body = loaded.body(memory, &before.table, &kprobes);
            match self.locate(memory, &body, &probe.place, probe.kind) {
                Ok(located) => {
                    probe.put(located.spot);
                    additions.add(located.site, Arc::clone(probe));
                }
                Err(error) => probe.set_reason(&error.to_string()),
            }
        }
        additions.put_into(&mut table);
        self.apply_running(memory, before, table);
    }
}

pub(crate) fn entry(name: &str) -> Place {
    Place::Symbol {
        module: None,
        name: name.to_owned(),
        offset: 0,
    }
}

fn is_in_module(probe: &Probe, table: &Table) -> bool {
    let placed = table.site(probe.address());
    probe.module().is_some() || placed.is_some_and(|site| site.module.is_some())
}
