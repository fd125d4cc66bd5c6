//! Hits of plain sites.

use guest_state::{Action, GuestMemory, GuestVirtAddr, Vcpu};

use crate::emulate::{self, Outcome};
use crate::engine::Engine;
use crate::engine::hits::int3::end_resume;
use crate::engine::sites::plain_site::{PlainSite, Told};
use crate::engine::sites::site::Way;
use crate::engine::sites::table::Table;
use crate::event::{Detail, Event, EventSink};

impl Engine {
    /// Answers an int3 at `at`, where RIP is, as [`Self::hit`] would, if a plain site is there and neither a debugger
    /// nor an attendant is to be asked: with the same result, but without looking at the site or its probe.
    pub(crate) fn plain_hit(
        &self,
        table: &Table,
        at: GuestVirtAddr,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> Option<Action> {
        let plain = table.plain_site(at)?;
        if self.debugger.is_attached() || self.attendants.are_any() {
            return None;
        }
        end_resume(vcpu);
        // The processor fetches the counter while the instruction is carried out, or while the event is made.
        plain.counters.fetch();
        let told = plain.told.filter(|_| self.merger.is_wanted());
        if let Some(told) = told {
            self.tell_plain(plain, told, memory, vcpu);
        }
        let outcome = match &*plain.way {
            // The debug registers don't notice accesses of the engine.
            Way::Emulate { compiled, .. } if table.watched.is_empty() => {
                emulate::run(compiled, memory, vcpu)
            }
            _ => Outcome::Step,
        };
        if told.is_none() {
            plain.counters.hit_at_exit();
        }
        match outcome {
            Outcome::Done => Some(Action::Resume),
            Outcome::Halted => Some(Action::Halt),
            // The emulation has changed nothing.
            Outcome::Fault { .. } | Outcome::Step => {
                let site = table.site(at)?;
                Some(self.pass(site, memory, vcpu))
            }
        }
    }

    /// Counts a hit and sends its event. It isn't inlined, as its code isn't needed while no client reads events.
    #[inline(never)]
    fn tell_plain(
        &self,
        plain: &PlainSite,
        told: Told,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) {
        let registers = *vcpu.registers();
        let of = (plain.probe, vcpu.id());
        let mut event = Event::plain(of, vcpu.tsc(), told.registers.take(&registers), Detail::Pre);
        if told.context {
            let of_task = self.of_task(memory, vcpu);
            self.tell_task(&mut event, &of_task, registers.rflags, memory);
        }
        // A client that reads the event finds its hit counted.
        plain.counters.hit_at_exit();
        self.merger.event(&event);
    }
}
