//! Hits of plain sites.

use guest_state::{Action, GuestMemory, GuestVirtAddr, Vcpu};

use crate::emulate::{self, Outcome};
use crate::engine::Engine;
use crate::engine::hits::int3::end_resume;
use crate::engine::sites::plain_site::PlainSite;
use crate::engine::sites::site::Way;
use crate::engine::sites::table::Table;
use crate::event::{Detail, Event, EventSink};

impl Engine {
    /// Answers an int3 at RIP as [`Self::hit`] would, if a plain site is there and neither a debugger nor an attendant
    /// is to be asked: with the same result, but without looking at the site or its probe.
    pub(crate) fn plain_hit(
        &self,
        table: &Table,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Option<Action> {
        let at = GuestVirtAddr(vcpu.registers().rip);
        let (plain, site) = table.plain_site(at)?;
        if self.debugger.is_attached() || self.attendants.are_any() {
            return None;
        }
        end_resume(vcpu);
        plain.counters.exit();
        plain.counters.hit(1);
        self.tell_plain(plain, memory, vcpu);
        let outcome = match &*plain.way {
            // Nothing that is done here comes to the notice of the debug registers.
            Way::Emulate { compiled, .. } if table.watched.is_empty() => {
                emulate::run(compiled, memory, vcpu)
            }
            _ => Outcome::Step,
        };
        Some(match outcome {
            Outcome::Done => Action::Resume,
            Outcome::Halted => Action::Halt,
            // Nothing has changed.
            Outcome::Fault { .. } | Outcome::Step => self.pass(site, memory, vcpu),
        })
    }

    fn tell_plain(&self, plain: &PlainSite, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) {
        let Some(told) = plain.told.filter(|_| self.merger.is_wanted()) else {
            return;
        };
        let registers = *vcpu.registers();
        let of = (plain.probe, vcpu.id());
        let mut event = Event::plain(of, vcpu.tsc(), told.registers.take(&registers), Detail::Pre);
        if told.context {
            let of_task = self.of_task(memory, vcpu);
            self.tell_task(&mut event, &of_task, registers.rflags, memory);
        }
        self.merger.event(&event);
    }
}
