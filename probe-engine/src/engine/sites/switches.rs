//! What is switched off.

use std::collections::BTreeSet;

use crate::probe::{ProbeId, ProbeSpec, Switch};

/// The switches of all probes, and of each that isn't on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Switches {
    /// All breakpoints that users asked for are out of the text.
    pub(crate) disarmed: bool,
    /// No probe may be a jump.
    pub(crate) jumpless: bool,
    disabled: BTreeSet<ProbeId>,
    /// Probes that may not be jumps.
    unoptimized: BTreeSet<ProbeId>,
    /// Probes at whose hits an attendant is asked.
    attended: BTreeSet<ProbeId>,
}

impl Switches {
    /// Sets the switches of a new probe.
    pub(crate) fn add(&mut self, id: ProbeId, spec: &ProbeSpec) {
        self.set(id, Switch::Enabled(spec.enabled));
        self.set(id, Switch::Optimize(spec.options.optimize));
    }

    /// Sets one switch of a probe.
    pub(crate) fn set(&mut self, id: ProbeId, switch: Switch) {
        let (off, on) = match switch {
            Switch::Enabled(on) => (&mut self.disabled, on),
            Switch::Optimize(on) => (&mut self.unoptimized, on),
            Switch::Attended(on) => (&mut self.attended, !on),
        };
        if on {
            off.remove(&id);
        } else {
            off.insert(id);
        }
    }

    /// Sets the switch of all probes. The probes' own switches stay as they are.
    pub(crate) fn set_all(&mut self, switch: Switch) {
        match switch {
            Switch::Enabled(on) => self.disarmed = !on,
            Switch::Optimize(on) => self.jumpless = !on,
            // There is no such switch of all probes.
            Switch::Attended(_) => {}
        }
    }

    /// Forgets the switches of a probe that has gone.
    pub(crate) fn forget(&mut self, id: ProbeId) {
        self.disabled.remove(&id);
        self.unoptimized.remove(&id);
        self.attended.remove(&id);
    }

    /// Returns true if the probe itself is enabled.
    pub(crate) fn is_enabled(&self, id: ProbeId) -> bool {
        !self.disabled.contains(&id)
    }

    /// Returns true if the probe is enabled, and not all are disarmed.
    pub(crate) fn is_active(&self, id: ProbeId) -> bool {
        !self.disarmed && self.is_enabled(id)
    }

    /// Returns true if an attendant is asked at the probe's hits.
    pub(crate) fn is_attended(&self, id: ProbeId) -> bool {
        self.attended.contains(&id)
    }

    /// Returns true if the probe's own switch lets it become a jump.
    pub(crate) fn may_optimize(&self, id: ProbeId) -> bool {
        !self.unoptimized.contains(&id)
    }
}
