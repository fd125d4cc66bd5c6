//! Which hits of a breakpoint meet the conditions of a probe; detours have those compiled in.

use guest_state::x86_64::paging::{read_virt, read_virt_u64};
use guest_state::{GuestMemory, GuestVirtAddr, Vcpu};

use crate::condition::Context;
use crate::engine::Engine;
use crate::engine::sites::probe::Probe;

impl Engine {
    /// Returns true if the hit that a vCPU stopped for meets the probe's conditions. If that can't be told, counts the
    /// hit as missed and returns false.
    pub(crate) fn meets_condition(
        &self,
        probe: &Probe,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> bool {
        if probe.is_plain {
            return true;
        }
        let condition = &probe.options.condition;
        let of_task = condition.iter().any(|it| it.operand.is_of_task());
        let mut context = Context {
            cpu: vcpu.id().0,
            ..Context::default()
        };
        if of_task {
            (context.pid, context.tgid) = self.task_numbers(memory, vcpu);
        }
        let registers = vcpu.registers();
        let mut known = condition.iter().filter(|it| it.is_known(&context));
        if !known.all(|it| it.holds(registers, &context)) {
            return false;
        }
        let is_known = condition.iter().all(|it| it.is_known(&context));
        if !is_known {
            probe.miss();
        }
        is_known
    }

    /// `pid` and `tgid` of the current task, as far as they can be read.
    fn task_numbers(
        &self,
        memory: &dyn GuestMemory,
        vcpu: &mut dyn Vcpu,
    ) -> (Option<u32>, Option<u32>) {
        let variables = self.kernel.variables;
        let read = |control: &guest_state::ControlRegisters| {
            let tables = control.page_tables().ok()?;
            let at = control
                .gs_base
                .wrapping_add_signed(variables.current_task?.into());
            let task = read_virt_u64(memory, tables, GuestVirtAddr(at)).ok()?;
            let number = |offset: Option<u32>| {
                let at = task.wrapping_add(offset?.into());
                let mut bytes = [0; 4];
                read_virt(memory, tables, GuestVirtAddr(at), &mut bytes).ok()?;
                Some(u32::from_le_bytes(bytes))
            };
            Some((number(variables.pid), number(variables.tgid)))
        };
        vcpu.control().ok().and_then(read).unwrap_or_default()
    }
}
