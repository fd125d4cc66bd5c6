//! The guest's tasks, as far as it matters which of them will run again.

use guest_state::x86_64::paging::{PageTables, read_virt};
use guest_state::{GuestMemory, GuestVirtAddr, Vcpu};

use crate::calls::Task;
use crate::engine::Engine;

/// The state of a task that will never run again, once it has left its CPU (`include/linux/sched.h`,
/// `TASK_DEAD`; `kernel/sched/core.c`, `do_task_dead` and `finish_task_switch`).
const TASK_DEAD: u64 = 0x80;

impl Engine {
    /// Returns the task that a vCPU in the kernel is executing.
    pub(crate) fn current_task(&self, memory: &dyn GuestMemory, vcpu: &mut dyn Vcpu) -> Task {
        let variables = self.kernel.variables;
        let read = |control: &guest_state::ControlRegisters| {
            let tables = [control.page_tables().ok()?];
            let at = control
                .gs_base
                .wrapping_add_signed(variables.current_task?.into());
            let at = number(memory, &tables, at, 8)?;
            let canary = |offset: u32| number(memory, &tables, at.wrapping_add(offset.into()), 8);
            let canary = variables.stack_canary.and_then(canary).unwrap_or(0);
            Some(Task { at, canary })
        };
        vcpu.control().ok().and_then(read).unwrap_or_default()
    }

    /// Returns true if a task has ended for good, so that nothing on its stack will be returned to: its state says so,
    /// or there is another task in its place. A task that isn't known, or can't be read, has not.
    ///
    /// What the stack says is no sign: the guest's own tools take return addresses too. Nor is it one that a task is
    /// no longer in the list of tasks: it may still have its last instructions to execute (`kernel/exit.c`,
    /// `exit_notify`). The number and the start time change when a thread executes a program (`fs/exec.c`,
    /// `de_thread`); the secret of the stack protector stays for a task's life (`kernel/fork.c`, `dup_task_struct`).
    pub(crate) fn has_ended(
        &self,
        memory: &dyn GuestMemory,
        tables: &[PageTables],
        task: Task,
    ) -> bool {
        if task.at == 0 {
            return false;
        }
        let variables = self.kernel.variables;
        let read = |(offset, size): (u32, u8)| {
            let at = task.at.wrapping_add(offset.into());
            number(memory, tables, at, size)
        };
        let canary = variables.stack_canary.and_then(|offset| read((offset, 8)));
        let replaced = task.canary != 0 && canary.is_some_and(|canary| canary != task.canary);
        // The state is read first: a task that is dead gets off its CPU and never on one again.
        let dead = || variables.state.and_then(read) == Some(TASK_DEAD);
        let off_cpu = || variables.on_cpu.and_then(|offset| read((offset, 4))) == Some(0);
        replaced || dead() && off_cpu()
    }
}

/// Reads a number of `size` bytes, up to 8, by the first tables that map it.
fn number(memory: &dyn GuestMemory, tables: &[PageTables], at: u64, size: u8) -> Option<u64> {
    tables.iter().find_map(|tables| {
        let mut bytes = [0; 8];
        let wanted = bytes.get_mut(..size.into())?;
        read_virt(memory, *tables, GuestVirtAddr(at), wanted).ok()?;
        Some(u64::from_le_bytes(bytes))
    })
}
