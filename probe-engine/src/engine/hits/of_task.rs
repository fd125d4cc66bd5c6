//! Which task a hit is of, and its time by the guest's own clock.

use guest_kernel::context::TaskContext;
use guest_state::x86_64::paging::PageTables;
use guest_state::{GuestMemory, GuestVirtAddr, Vcpu};

use crate::engine::Engine;
use crate::event::Event;

/// What a stopped vCPU tells of its current task.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OfTask {
    /// Where the variables of the guest's CPU are, and the page tables that it uses; `None` where KVM doesn't tell.
    of_cpu: Option<(GuestVirtAddr, PageTables)>,
    /// The address of the current task, if it is known.
    pub(crate) task: Option<u64>,
    /// The context of the task, if it is known.
    pub(crate) context: Option<TaskContext>,
}

impl OfTask {
    pub(crate) fn tables(&self) -> Option<PageTables> {
        self.of_cpu.map(|(_, tables)| tables)
    }
}

impl Engine {
    /// Reads a vCPU's current task and its context.
    pub(crate) fn of_task(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> OfTask {
        let control = vcpu.control().ok();
        let of_cpu = control.and_then(|control| {
            let tables = control.page_tables().ok()?;
            Some((GuestVirtAddr(control.gs_base), tables))
        });
        let known = &self.kernel.variables;
        let found = of_cpu.and_then(|(at, tables)| TaskContext::read(memory, tables, at, known));
        let (task, context) = found.map(|(task, context)| (task.0, context)).unzip();
        OfTask {
            of_cpu,
            task,
            context,
        }
    }

    /// Adds the task, its context, the time and RFLAGS to a hit's event; `rflags` are those at the hit.
    pub(crate) fn tell_task(
        &self,
        event: &mut Event,
        of_task: &OfTask,
        rflags: u64,
        memory: &dyn GuestMemory,
    ) {
        let Some(of_cpu) = of_task.of_cpu else {
            return;
        };
        event.flags = Some(rflags);
        event.time_ns = self.time(memory, of_cpu, event.tsc);
        event.task = of_task.task.unwrap_or(0);
        event.context = of_task.context.map(Box::new);
    }
}
