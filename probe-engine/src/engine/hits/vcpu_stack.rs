//! The stack and the task of a vCPU that stands still.

use guest_kernel::context::TaskContext;
use guest_state::x86_64::paging::{PageTables, read_virt_u64};
use guest_state::{GuestMemory, GuestVirtAddr, Registers};

use super::stack::AsOf;
use crate::engine::Engine;
use crate::event::Stack;

/// A vCPU as it is stopped.
#[derive(Debug, Clone, Copy)]
pub struct StoppedVcpu<'a> {
    /// Its general registers.
    pub registers: &'a Registers,
    /// True at privilege level 0.
    pub in_kernel: bool,
    /// The page tables that it uses.
    pub tables: PageTables,
    /// Where its per-CPU variables start: the GS base that it has in the kernel.
    pub variables: GuestVirtAddr,
}

/// What a vCPU is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VcpuStack {
    /// The kernel's call stack. Outside the kernel it is where the vCPU stands.
    pub stack: Stack,
    /// The task, if it is known.
    pub task: Option<TaskContext>,
}

impl Engine {
    /// The stack, of at most `most` addresses, and the task of a vCPU that stands still.
    ///
    /// No change of probes may be made meanwhile.
    pub fn vcpu_stack(
        &self,
        memory: &dyn GuestMemory,
        vcpu: &StoppedVcpu<'_>,
        most: u32,
    ) -> VcpuStack {
        let known = &self.kernel.variables;
        // In user mode the tables may lack the kernel (page table isolation).
        let root = self.kernel_root().filter(|_| !vcpu.in_kernel);
        let tables = PageTables {
            root: root.unwrap_or(vcpu.tables.root),
            ..vcpu.tables
        };
        let (at, task) = TaskContext::read(memory, tables, vcpu.variables, known).unzip();
        let mut stack = Stack::default();
        if vcpu.in_kernel {
            let now = AsOf::Now(self.reader.calls());
            let at = at.map(|task: GuestVirtAddr| task.0);
            let mut read = |at| read_virt_u64(memory, tables, at).ok();
            stack = self.stack(vcpu.registers, at, (memory, now), &mut read, most);
        }
        // In user mode, or without tables for unwinding, there is still the place where the vCPU
        // stands.
        if stack.addresses.is_empty() {
            let here = self.stands_at(GuestVirtAddr(vcpu.registers.rip));
            stack = Stack {
                addresses: [here.0].into(),
                is_cut: vcpu.in_kernel,
            };
        }
        VcpuStack { stack, task }
    }
}
