//! What a stopped vCPU tells of a hit besides registers: the current task, and the values that a probe asks for.

use guest_state::x86_64::paging::{PageTables, read_virt, read_virt_u64};
use guest_state::{GuestMemory, GuestVirtAddr, Registers, Tsc, Vcpu};

use crate::engine::Engine;
use crate::engine::sites::probe::Probe;
use crate::event::{Detail, Event, EventSink};
use crate::filter::{Filter, Subject};
use crate::probe::Options;
use crate::task::TaskContext;
use crate::value::{self, Bases, Encoder, Recorded, Taken};

/// What is told of a hit besides registers.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The address of the current task; 0 where it isn't looked at or not known.
    task: u64,
    context: Option<Box<TaskContext>>,
    values: Recorded,
}

impl Engine {
    /// Counts a hit of a probe and tells of it, unless it doesn't meet the probe's filter. Otherwise as
    /// [`Self::tell`].
    pub(crate) fn take_hit(
        &self,
        probe: &Probe,
        (memory, vcpu): (&dyn GuestMemory, &mut dyn Vcpu),
        tsc: &mut Option<Tsc>,
        registers: &Registers,
        detail: Detail,
    ) {
        if let Some(observed) = self.observe(probe, memory, vcpu, registers, &detail) {
            probe.hit();
            self.send(probe, vcpu, tsc, registers, detail, observed);
        }
    }

    /// Sends an event of a probe, with what it asks for of the registers, those of a call's entry too. `tsc`
    /// is the time that all events of one hit have, asked for by the first.
    pub(crate) fn tell(
        &self,
        probe: &Probe,
        (memory, vcpu): (&dyn GuestMemory, &mut dyn Vcpu),
        tsc: &mut Option<Tsc>,
        registers: &Registers,
        detail: Detail,
    ) {
        if let Some(observed) = self.observe(probe, memory, vcpu, registers, &detail) {
            self.send(probe, vcpu, tsc, registers, detail, observed);
        }
    }

    fn send(
        &self,
        probe: &Probe,
        vcpu: &dyn Vcpu,
        tsc: &mut Option<Tsc>,
        registers: &Registers,
        mut detail: Detail,
        observed: Observed,
    ) {
        let Some(wanted) = probe.options.capture.fetches() else {
            return;
        };
        if let Detail::Return { entry, .. } = &mut detail {
            **entry = wanted.take(entry);
        }
        self.merger.event(&Event {
            probe: probe.id,
            vcpu: vcpu.id(),
            tsc: *tsc.get_or_insert_with(|| vcpu.tsc()),
            registers: wanted.take(registers),
            task: observed.task,
            context: observed.context,
            values: observed.values,
            detail,
        });
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
        let Options {
            values,
            filter,
            context,
            ..
        } = &probe.options;
        if values.is_empty() && filter.is_none() && !context {
            return Some(Observed::default());
        }
        let cpu = vcpu.id().0;
        let control = vcpu.control().ok();
        let tables = control.and_then(|control| control.page_tables().ok());
        let current = self.kernel.variables.current_task;
        let task = control.zip(tables).zip(current);
        let task = task.and_then(|((control, tables), current)| {
            let at = control.gs_base.wrapping_add_signed(current.into());
            read_virt_u64(memory, tables, GuestVirtAddr(at)).ok()
        });
        let found = tables.zip(task);
        let context = found.and_then(|(tables, task)| self.task_context(memory, tables, task));
        let entry = match detail {
            Detail::Return { entry, .. } => Some(&**entry),
            _ => None,
        };
        let bases = Bases {
            registers,
            entry,
            task,
            cpu,
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
            let context = context.as_ref();
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
        meets.then(|| Observed {
            task: task.unwrap_or(0),
            context: context.map(Box::new),
            values,
        })
    }

    /// What the task at an address is, as far as the kernel's types tell.
    fn task_context(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
        task: u64,
    ) -> Option<TaskContext> {
        let variables = self.kernel.variables;
        let read = |offset: Option<u32>, into: &mut [u8]| {
            let at = GuestVirtAddr(task.wrapping_add(offset?.into()));
            read_virt(memory, tables, at, into).ok()
        };
        let number = |offset| {
            let mut bytes = [0; 4];
            read(offset, &mut bytes)?;
            Some(u32::from_le_bytes(bytes))
        };
        let mut comm = [0; 16];
        read(variables.comm, &mut comm)?;
        Some(TaskContext {
            pid: number(variables.pid)?,
            tgid: number(variables.tgid)?,
            comm,
            ..TaskContext::default()
        })
    }
}
