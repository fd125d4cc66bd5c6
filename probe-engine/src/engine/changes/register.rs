//! Registering probes.

use guest_state::StoppedGuest;

use crate::engine::Engine;
use crate::engine::changes::draft::Draft;
use crate::engine::changes::registration::Registration;
use crate::engine::placement::target::{Finder, Target};
use crate::engine::sites::table::Table;
use crate::error::{BatchError, RegisterError};
use crate::probe::{ProbeId, ProbeInfo, ProbeKind, ProbeSpec};

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
        let mut draft = self.draft(guest.memory(), specs);
        let ids = self.register_drafted(guest, &mut draft)?;
        Ok(self.describe(ids))
    }

    /// As [`Self::register`], of a batch that was worked out before the guest stopped. Where nothing has changed
    /// since, it only writes. Returns the numbers of the probes; [`Self::describe`] tells of them when the
    /// guest runs again. What the change has replaced is freed with the draft.
    ///
    /// # Errors
    /// As of [`Self::register`].
    pub fn register_drafted<'d>(
        &self,
        guest: &dyn StoppedGuest,
        draft: &'d mut Draft<'_>,
    ) -> Result<&'d [ProbeId], BatchError> {
        let specs = draft.specs;
        let mut change = self.change(guest);
        self.tidy_calls(guest);
        let kprobes = self.guest_kprobes(guest);
        let is_code = |spec: &ProbeSpec| !matches!(spec.kind, ProbeKind::Watch { .. });
        if kprobes.changing && specs.iter().any(is_code) {
            return Err(RegisterError::KprobesChanging.into());
        }
        let before = change.generation();
        let registration = match draft.registration(&before, guest.memory(), &kprobes) {
            Some(registration) => registration,
            None => {
                self.make_room(guest, specs.len());
                let mut table = Table::clone(&before.table);
                let mut finder = Finder::new(self, guest, &before.table, &kprobes);
                let find = |index, spec: &_| match draft.take(index, finder.kernel()) {
                    Some(located) => Ok(Target::Instruction(located)),
                    None => finder.find(spec),
                };
                let added = self.add_all(&before.registry, specs, find, &mut table)?;
                self.wait_for_modules(guest, &mut table, &added)?;
                Registration::new(&before, table, &added)?
            }
        };
        change.commit::<RegisterError>(&registration.plan)?;
        Ok(&draft.done.insert(registration).ids)
    }

    /// What clients are told of these probes, as far as they are still there.
    pub fn describe(&self, ids: &[ProbeId]) -> Vec<ProbeInfo> {
        let registry = self.registry.lock();
        Self::infos(&self.table(), ids.iter().filter_map(|id| registry.get(*id)))
    }
}
