//! Switching probes on and off, and jumps.

use std::sync::Arc;

use guest_state::StoppedGuest;

use crate::engine::Engine;
use crate::engine::changes::plan::{Generation, Plan};
use crate::engine::sites::probe::Probe;
use crate::engine::sites::table::Table;
use crate::error::ChangeError;
use crate::probe::{ProbeId, ProbeInfo, Switch};

/// A switch of probes that is worked out while the guest runs.
#[derive(Debug)]
pub struct Switching {
    /// `None` for the switch of all probes at once.
    ids: Option<Vec<ProbeId>>,
    switch: Switch,
    probes: Vec<Arc<Probe>>,
    pub(crate) plan: Plan,
}

impl Engine {
    /// Switches all of these probes, or none. `None` is the switch of all: that takes all breakpoints and
    /// watchpoints that users asked for out of the guest, or makes breakpoints of all jumps. The probes' own switches
    /// stay as they are then, and count again as soon as this one is on.
    ///
    /// # Errors
    /// A probe doesn't exist, the text can't be written, or there is no debug
    /// register left for a watchpoint.
    pub fn switch(
        &self,
        guest: &dyn StoppedGuest,
        ids: Option<&[ProbeId]>,
        switch: Switch,
    ) -> Result<Vec<ProbeInfo>, ChangeError> {
        let mut switching = self.draft_switch(ids, switch)?;
        self.switch_drafted(guest, &mut switching)?;
        Ok(self.describe_switched(&switching))
    }

    /// Works [`Self::switch`] out while the guest runs.
    ///
    /// # Errors
    /// A probe doesn't exist, or there is no debug register left for a watchpoint.
    pub fn draft_switch(
        &self,
        ids: Option<&[ProbeId]>,
        switch: Switch,
    ) -> Result<Switching, ChangeError> {
        self.plan_switch(self.generation(), ids.map(<[_]>::to_vec), switch)
    }

    /// As [`Self::switch`], of what was worked out before the guest stopped. Where nothing has changed since, it only
    /// writes. What the change has replaced is freed with the switching.
    ///
    /// # Errors
    /// As of [`Self::switch`].
    pub fn switch_drafted(
        &self,
        guest: &dyn StoppedGuest,
        switching: &mut Switching,
    ) -> Result<(), ChangeError> {
        let mut change = self.change(guest);
        let now = change.generation();
        if !switching.plan.before.is(&now) {
            *switching = self.plan_switch(now, switching.ids.clone(), switching.switch)?;
        }
        let plan = &switching.plan;
        self.may_arm(guest, &plan.before.table, &plan.come.sites)?;
        change.commit::<ChangeError>(plan)?;
        self.end_calls(guest);
        self.forget_unseen();
        Ok(())
    }

    /// The probes that were switched, none where it was the switch of all.
    pub fn describe_switched(&self, switching: &Switching) -> Vec<ProbeInfo> {
        Self::infos(&switching.plan.after.table, &switching.probes)
    }

    fn plan_switch(
        &self,
        before: Generation,
        ids: Option<Vec<ProbeId>>,
        switch: Switch,
    ) -> Result<Switching, ChangeError> {
        let probes = before.registry.select(ids.as_deref().unwrap_or_default())?;
        let mut table = Table::clone(&before.table);
        match &ids {
            None => table.switches.set_all(switch),
            Some(ids) => ids.iter().for_each(|id| table.switches.set(*id, switch)),
        }
        table.rearm();
        let watched = table.watch(before.registry.probes());
        watched.map_err(ChangeError::from_watch)?;
        table.reconsider();
        let registry = Arc::clone(&before.registry);
        Ok(Switching {
            ids,
            switch,
            probes,
            plan: Plan::new(before, registry, table),
        })
    }

    /// Returns true if the switch of all has taken all breakpoints out.
    pub fn is_disarmed(&self) -> bool {
        self.table().switches.disarmed
    }
}
