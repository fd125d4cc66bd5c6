//! Switching probes on and off, and jumps.

use std::sync::Arc;

use guest_state::StoppedGuest;

use crate::engine::Engine;
use crate::engine::changes::change::Change;
use crate::engine::changes::plan::{Generation, Plan};
use crate::engine::sites::table::Table;
use crate::error::ChangeError;
use crate::probe::{ProbeId, ProbeInfo, Switch};

impl Engine {
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
        let before = change.generation();
        let probes = before.registry.select(ids)?;
        let were: Vec<_> = probes.iter().map(|probe| probe.set(switch)).collect();
        let table = Table::clone(&before.table);
        let result = self.commit_switch(&mut change, before, table);
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
        let before = change.generation();
        let mut table = Table::clone(&before.table);
        match switch {
            Switch::Enabled(on) => table.disarmed = !on,
            Switch::Optimize(on) => table.jumpless = !on,
        }
        self.commit_switch(&mut change, before, table)
    }

    /// Commits what switches say now.
    fn commit_switch(
        &self,
        change: &mut Change<'_>,
        before: Generation,
        mut table: Table,
    ) -> Result<(), ChangeError> {
        let guest = change.guest;
        table.rearm();
        let watched = table.watch(before.registry.probes());
        watched.map_err(ChangeError::from_watch)?;
        table.reconsider();
        self.may_arm(guest, &before.table, &table)?;
        let registry = Arc::clone(&before.registry);
        change.commit::<ChangeError>(&Plan::new(before, registry, table))?;
        self.end_calls(guest);
        self.forget_unseen();
        Ok(())
    }

    /// Whether [`Self::switch_all`] has taken all breakpoints out.
    pub fn is_disarmed(&self) -> bool {
        self.table().disarmed
    }
}
