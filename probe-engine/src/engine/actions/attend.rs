//! Asking an attendant at each hit of some probes, and taking the answers.

use std::sync::Arc;
use std::time::Duration;

use guest_state::Vcpu;

use crate::action::{ActionRefusal, HitAction};
use crate::engine::Engine;
use crate::engine::actions::attendants::{AnswerError, AskedHits, AttendError, Attendant, Then};
use crate::engine::actions::check::check;
use crate::probe::{ProbeId, ProbeKind};

impl Engine {
    /// Holds a vCPU if an attendant is asked about one of these hits, and returns true then. A vCPU in the middle of a
    /// step can't stand still.
    pub(crate) fn hold(&self, vcpu: &mut dyn Vcpu, asked: AskedHits, then: Then) -> bool {
        if asked.is_empty() || vcpu.step_under_way().is_some() {
            return false;
        }
        let (tables, registers) = (vcpu.page_tables(), *vcpu.registers());
        self.attendants
            .hold(vcpu.id(), asked, then, &registers, tables)
    }

    /// Has an attendant asked at each hit of these probes. It is to answer within `time`. It is asked at breakpoints
    /// only, not at jumps: switch the probes by [`Switch::Attended`](crate::probe::Switch::Attended) as well,
    /// afterwards.
    ///
    /// # Errors
    /// This attendant is then asked about none of the probes.
    pub fn attend(
        &self,
        ids: &[ProbeId],
        time: Duration,
        attendant: &Arc<dyn Attendant>,
    ) -> Result<(), AttendError> {
        let registry = self.registry.lock();
        let mut probes = Vec::new();
        for id in ids {
            let probe = registry.get(*id).ok_or(AttendError::UnknownProbe(*id))?;
            if matches!(probe.kind, ProbeKind::Watch { .. }) {
                return Err(AttendError::Watchpoint(*id));
            }
            probes.push(Arc::clone(probe));
        }
        self.attendants.add(&probes, time, attendant)
    }

    /// Asks an attendant no more. Hits that are held for it go on as soon as the monitor looks again.
    pub fn ask_no_more(&self, attendant: &Arc<dyn Attendant>) {
        self.attendants.remove(attendant);
    }

    /// Lets a hit that is held go on, after these actions. Have the monitor look again.
    ///
    /// # Errors
    /// The hit isn't held for this attendant.
    pub fn answer(
        &self,
        attendant: &Arc<dyn Attendant>,
        number: u64,
        actions: Vec<HitAction>,
    ) -> Result<(), AnswerError> {
        self.attendants.answer(attendant, number, actions)
    }

    /// Checks that a hit that is held takes an answer with these actions.
    ///
    /// # Errors
    /// The first of the actions that can't be done there.
    pub fn check_answer(&self, probe: ProbeId, actions: &[HitAction]) -> Result<(), ActionRefusal> {
        let registry = self.registry.lock();
        let Some(probe) = registry.get(probe) else {
            return Ok(());
        };
        check(actions, probe.kind, probe.beyond_entry())
    }
}
