//! How a vCPU goes on from a hit that an attendant was asked about.

use guest_state::{Action, GuestMemory, Vcpu};

use crate::engine::Engine;
use crate::engine::actions::attendants::{Released, Then};

impl Engine {
    /// Does what the attendant answered, and gets past the probed instruction. Where several probes have been hit at
    /// once, the next probe's attendant is asked first.
    ///
    /// Probes may have come and gone meanwhile. The instruction is executed in any case: as the present site says, or
    /// from the text, if there is no site any more and so no breakpoint.
    pub(crate) fn released(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Action {
        let Some(released) = self.attendants.release(vcpu.id()) else {
            return Action::Resume;
        };
        let Released {
            asked,
            answer,
            rest,
            then,
            rip,
        } = released;
        if let Some(actions) = answer {
            self.act(&asked.probe, &actions, asked.moment, memory, vcpu);
        }
        let then = match vcpu.registers().rip == rip {
            true => then,
            false => Then::Resume,
        };
        if self.hold(vcpu, rest, then) {
            return Action::Hold;
        }
        let Then::Pass(at) = then else {
            return Action::Resume;
        };
        match self.table().site(at) {
            Some(site) => self.follow(site, memory, vcpu),
            None => Action::Resume,
        }
    }
}
