//! A change of probes: from one table to the next, in the guest's text and for its traps.

use std::sync::Arc;

use guest_state::{Debugging, DebuggingError, GuestMemory, MemoryError, StoppedGuest};

use crate::engine::Engine;
use crate::engine::changes::patches::{has_read, lift};
use crate::engine::changes::plan::{Generation, Plan};
use crate::engine::changes::registry::Registry;
use crate::engine::lock::Guard;
use crate::engine::sites::site::Site;

/// A change of probes while no vCPU runs: a plan is committed. Without a commit nothing has changed.
pub(crate) struct Change<'e> {
    engine: &'e Engine,
    pub(crate) guest: &'e dyn StoppedGuest,
    registry: Guard<'e, Arc<Registry>>,
    /// Whether the monitor was asked for something.
    asked: bool,
}

impl Change<'_> {
    /// The generation that plans begin at.
    pub(crate) fn generation(&self) -> Generation {
        self.engine.generation_of(&self.registry)
    }

    /// Makes the guest what a plan for the present generation says, as [`Engine::apply`] does. First the monitor is
    /// asked for all that either generation needs of it, which is right for both. Then the records that jumps have left
    /// so far are reported for the present probes, and the text changes.
    ///
    /// # Errors
    /// What the monitor refuses, or text that is no memory; then everything is as before.
    pub(crate) fn commit<E>(&mut self, plan: &Plan) -> Result<(), E>
    where
        E: From<DebuggingError> + From<MemoryError>,
    {
        let Self { engine, guest, .. } = *self;
        debug_assert!(
            plan.before.is(&self.generation()),
            "a plan for another generation"
        );
        let after = &plan.after.table;
        self.asked = true;
        guest.set_debugging(&Debugging {
            breakpoints: engine.wants_breakpoints() || after.has_int3(),
            watchpoints: after.watchpoints(),
        })?;
        engine.settle(guest.memory());
        engine.apply(guest.memory(), plan)?;
        *self.registry = Arc::clone(&plan.after.registry);
        Ok(())
    }
}

impl Drop for Change<'_> {
    /// Has the monitor debug the vCPUs only for what is still needed: int3s of the guest's own cost exits while ours
    /// are watched for.
    fn drop(&mut self) {
        if self.asked {
            // Where the monitor refuses, the vCPUs stay debugged for more, and the engine reinjects what is the
            // guest's.
            let _more_is_right_too = self.guest.set_debugging(&self.engine.debugging());
        }
    }
}

impl Engine {
    /// The present generation, for a plan that is made while the guest runs.
    pub(crate) fn generation(&self) -> Generation {
        let registry = self.registry.lock();
        self.departed.make_room();
        self.generation_of(&registry)
    }

    /// As [`Self::generation`], where the registry is locked.
    pub(crate) fn generation_of(&self, registry: &Arc<Registry>) -> Generation {
        Generation {
            registry: Arc::clone(registry),
            table: Arc::clone(&self.table()),
        }
    }

    /// Begins a change of probes. No other change is made until it is dropped.
    pub(crate) fn change<'e>(&'e self, guest: &'e dyn StoppedGuest) -> Change<'e> {
        Change {
            engine: self,
            guest,
            registry: self.registry.lock(),
            asked: false,
        }
    }

    /// Makes the guest's text what a plan for the present table says, and publishes the next table. With the guest
    /// running, the plan may either only remove or only add breakpoints.
    ///
    /// A breakpoint that is taken away is lifted before traps see the new table, and a new one is planted after that,
    /// so that no trap of ours is taken for the guest's. If a vCPU has trapped on a lifted one in between, that counts
    /// as a missed hit. A jump that the guest holds stays, and so does its detour: see [`Self::take_back`]. Call with
    /// the registry locked.
    ///
    /// # Errors
    /// Text that is no memory; then everything is as before.
    pub(crate) fn apply(&self, memory: &dyn GuestMemory, plan: &Plan) -> Result<(), MemoryError> {
        let (before, after) = (&plan.before.table, &plan.after.table);
        // Where the guest holds a jump, an int3 is the guest's.
        let is_free = |at| before.held(at).is_none();
        let jumps = plan.gone.others().iter().any(|site| site.jump().is_some());
        let kprobes = jumps.then(|| self.known_kprobes(memory));
        let mut held = before.all_held().to_vec();
        held.extend(plan.gone.lift(memory, is_free, kprobes.as_ref())?);
        self.departed.change(&plan.turnover);
        self.number_detours(memory, plan.come.others().iter().chain(&plan.kept));
        let after = match held.is_empty() {
            true => Arc::clone(after),
            false => after.holding(held),
        };
        self.publish(&after);
        for site in &plan.kept {
            site.trap_when_done(memory)?;
        }
        let may_plant = |at| is_free(at) && after.held(at).is_none();
        if let Err(error) = plan.come.plant(memory, may_plant) {
            self.number_detours(memory, before.sites());
            self.publish(before);
            plan.gone.plant(memory, is_free)?;
            return Err(error);
        }
        Ok(())
    }

    /// See [`crate::engine::jumps::reader::Reader::number_detours`].
    fn number_detours<'s>(
        &self,
        memory: &dyn GuestMemory,
        sites: impl Iterator<Item = &'s Arc<Site>> + Clone,
    ) {
        if self.reader.number_detours(memory, sites) {
            self.returns.expect_traps();
        }
    }

    /// Returns true if the guest has given a jump back that it held.
    pub(crate) fn may_take_back(&self, memory: &dyn GuestMemory) -> bool {
        let table = self.table();
        if table.all_held().is_empty() {
            return false;
        }
        let kprobes = self.known_kprobes(memory);
        let given_back = |site: &Arc<Site>| {
            let jump = site.jump();
            jump.is_some_and(|jump| jump.is_planted(memory, site.phys)) && !has_read(&kprobes, site)
        };
        table.all_held().iter().any(given_back)
    }

    /// Takes those jumps out of the text that the guest held and has given back. Call with the registry
    /// locked, and the guest stopped.
    ///
    /// # Errors
    /// Text that is no memory.
    pub(crate) fn take_back(&self, memory: &dyn GuestMemory) -> Result<(), MemoryError> {
        let table = self.table();
        let (mut held, mut back) = (Vec::new(), Vec::new());
        let kprobes = (!table.all_held().is_empty()).then(|| self.known_kprobes(memory));
        for site in table.all_held() {
            let list = if lift(site, memory, kprobes.as_ref())? {
                &mut back
            } else {
                &mut held
            };
            list.push(Arc::clone(site));
        }
        if back.is_empty() {
            return Ok(());
        }
        let table = table.holding(held);
        self.publish(&table);
        for site in &back {
            if let Some(site) = table.site(site.virt).filter(|site| site.armed) {
                site.plant(memory)?;
            }
        }
        Ok(())
    }
}
