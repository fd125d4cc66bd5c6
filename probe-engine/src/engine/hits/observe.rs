//! What a stopped vCPU tells of a hit besides registers: the current task, and the values that a probe asks for.

use std::sync::Arc;

use guest_state::x86_64::paging::{read_virt, read_virt_u64};
use guest_state::{GuestMemory, GuestVirtAddr, Registers, Tsc, Vcpu};

use crate::engine::Engine;
use crate::engine::actions::attendants::{Asked, AskedHits};
use crate::engine::actions::moment::Moment;
use crate::engine::hits::of_task::OfTask;
use crate::engine::hits::stack::AsOf;
use crate::engine::sites::probe::Probe;
use crate::event::{Detail, Event, EventSink, Stack};
use crate::filter::{Filter, Subject};
use crate::probe::Options;
use crate::value::{self, Bases, Encoder, Recorded, Taken};

/// What is told of a hit besides registers.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// `None` where the probe asks for nothing of the task.
    of_task: Option<OfTask>,
    stack: Stack,
    values: Recorded,
}

impl Engine {
    /// Counts a hit of a probe, sends its event and does the probe's actions, unless the hit doesn't meet the probe's
    /// filter. If an attendant is to be asked about the hit, it is added to `asked`. Otherwise as [`Self::tell`].
    pub(crate) fn take_hit(
        &self,
        probe: &Arc<Probe>,
        (memory, vcpu): (&dyn GuestMemory, &mut dyn Vcpu),
        (tsc, asked): (&mut Option<Tsc>, &mut AskedHits),
        registers: &Registers,
        detail: Detail,
    ) {
        let Some(observed) = self.observe(probe, memory, vcpu, registers, &detail) else {
            return;
        };
        probe.hit();
        let moment = match &detail {
            Detail::Return {
                tail_call: true, ..
            } => Moment::TailCall,
            Detail::Return { .. } => Moment::Returned,
            Detail::Access => Moment::Accessed,
            Detail::Pre | Detail::Post | Detail::Fault { .. } => Moment::Before,
        };
        let event = self.send(probe, (memory, vcpu), tsc, registers, detail, observed);
        if !probe.is_plain {
            self.act(probe, &probe.options.actions, moment, memory, vcpu);
        }
        if let Some(event) = event {
            asked.push(Asked {
                probe: Arc::clone(probe),
                event,
                moment,
            });
        }
    }

    /// Sends an event of a probe, with those registers that the probe asks for, also of a call's entry. `tsc` is the
    /// time that all events of one hit have; the first event sets it.
    pub(crate) fn tell(
        &self,
        probe: &Probe,
        (memory, vcpu): (&dyn GuestMemory, &mut dyn Vcpu),
        tsc: &mut Option<Tsc>,
        registers: &Registers,
        detail: Detail,
    ) {
        if let Some(observed) = self.observe(probe, memory, vcpu, registers, &detail) {
            self.send(probe, (memory, vcpu), tsc, registers, detail, observed);
        }
    }

    /// Sends the event if it is wanted. Returns the event if an attendant is to be asked about it.
    fn send(
        &self,
        probe: &Probe,
        (memory, vcpu): (&dyn GuestMemory, &dyn Vcpu),
        tsc: &mut Option<Tsc>,
        registers: &Registers,
        mut detail: Detail,
        observed: Observed,
    ) -> Option<Event> {
        let captured = probe.capture.fetches();
        let (is_sent, is_asked) = (
            captured.is_some() && self.merger.is_wanted(),
            probe.is_attended(),
        );
        if !is_sent && !is_asked {
            return None;
        }
        let wanted = captured.unwrap_or_default();
        if let Detail::Return { entry, .. } = &mut detail {
            **entry = wanted.take(entry);
        }
        let tsc = *tsc.get_or_insert_with(|| vcpu.tsc());
        let mut event = Event {
            stack: observed.stack,
            values: observed.values,
            ..Event::plain((probe.id, vcpu.id()), tsc, wanted.take(registers), detail)
        };
        if let Some(of_task) = observed.of_task {
            self.tell_task(&mut event, &of_task, registers.rflags, memory);
        }
        if is_sent {
            self.merger.event(&event);
        }
        is_asked.then_some(event)
    }

    /// Takes what the probe asks for; `None` if the hit doesn't meet its filter.
    fn observe(
        &self,
        probe: &Probe,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
        registers: &Registers,
        detail: &Detail,
    ) -> Option<Observed> {
        if probe.is_plain {
            let context = probe.options.context;
            return Some(Observed {
                of_task: context.then(|| self.of_task(memory, vcpu)),
                ..Observed::default()
            });
        }
        let Options {
            values,
            filter,
            context,
            stack,
            ..
        } = &probe.options;
        if values.is_empty() && filter.is_none() && !context && *stack == 0 {
            return Some(Observed::default());
        }
        let cpu = vcpu.id().0;
        let of_task = self.of_task(memory, vcpu);
        let (task, tables) = (of_task.task, of_task.tables());
        let entry = match detail {
            Detail::Return { entry, .. } => Some(&**entry),
            _ => None,
        };
        let bases = Bases {
            registers,
            entry,
            task,
            cpu,
            interrupt_stack: None,
        };
        let mut read = |at, into: &mut [u8]| {
            tables.is_some_and(|tables| read_virt(memory, tables, GuestVirtAddr(at), into).is_ok())
        };
        let mut encoder = Encoder::default();
        for value in values.iter() {
            encoder.push(value::take(value, &bases, &mut read).as_deref());
        }
        let values = encoder.end();
        let subject = |values: &[Taken]| {
            let context = of_task.context.as_ref();
            let holds = |filter: &Filter| {
                filter.holds(&Subject {
                    values,
                    context,
                    cpu,
                })
            };
            filter.as_deref().is_none_or(holds)
        };
        let meets = match filter {
            None => true,
            Some(_) => subject(&values.iter().collect::<Vec<_>>()),
        };
        if !meets {
            return None;
        }
        let stack = match (stack, tables) {
            (0, _) | (_, None) => Stack::default(),
            (most, Some(tables)) => {
                let now = AsOf::Now(self.reader.calls());
                let mut read = |at| read_virt_u64(memory, tables, at).ok();
                self.stack(registers, task, (memory, now), &mut read, *most)
            }
        };
        Some(Observed {
            of_task: Some(of_task),
            stack,
            values,
        })
    }
}
