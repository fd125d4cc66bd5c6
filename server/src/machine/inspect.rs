//! Looking into a stopped guest: registers and memory.

use guest_state::x86_64::paging::{self, PageTables, UPPER_HALF};
use guest_state::{GuestVirtAddr, StoppedGuest, VcpuId};
use probe_engine::engine::StoppedVcpu;
use tonic::Status;
use vmm::StoppedVm;
use vmprobe_proto::v1;

use super::Machine;
use crate::status::Precondition;
use crate::{convert, limits, status};

impl Machine {
    /// Returns the general registers of a vCPU. Blocks.
    pub fn read_registers(&self, vcpu: u32) -> Result<v1::Registers, Status> {
        self.check_vcpu(vcpu)?;
        self.stopped(|stopped| {
            let found = stopped.registers(VcpuId(vcpu));
            let found = found.map_err(|error| status::vcpu(&error))?;
            Ok(convert::registers(&found))
        })
    }

    /// Returns where a vCPU stands: its task, and its call stack. Blocks.
    pub fn read_stack(&self, vcpu: u32, limit: u32) -> Result<v1::ReadStackResponse, Status> {
        self.check_vcpu(vcpu)?;
        let most = match limit {
            0 => limits::STACK_ADDRESSES,
            limit => limit.min(limits::STACK_ADDRESSES),
        };
        self.stopped(|stopped| {
            let id = VcpuId(vcpu);
            let failed = |error| status::vcpu(&error);
            let registers = stopped.registers(id).map_err(failed)?;
            let control = stopped.control(id).map_err(failed)?;
            let in_kernel = control.cpl == 0;
            // Between the kernel's entry and its `swapgs`, GS has the user's base (arch/x86/entry/entry_64.S).
            let variables = match in_kernel && control.gs_base >= UPPER_HALF.0 {
                true => control.gs_base,
                false => stopped.segments(id).map_err(failed)?.kernel_gs_base,
            };
            let stands = StoppedVcpu {
                registers: &registers,
                in_kernel,
                tables: page_tables(stopped, id)?,
                variables: GuestVirtAddr(variables),
            };
            let found = self.engine.vcpu_stack(stopped.memory(), &stands, most);
            Ok(convert::vcpu_stack(&found))
        })
    }

    /// Returns guest memory at a virtual address, up to the first page that isn't mapped for the vCPU, nor, at
    /// addresses of the kernel's, for the kernel. Shows the text without probes, unless `as_is`. Blocks.
    pub fn read_memory(
        &self,
        vcpu: u32,
        address: u64,
        length: u32,
        as_is: bool,
    ) -> Result<Vec<u8>, Status> {
        self.check_vcpu(vcpu)?;
        self.stopped(|stopped| {
            let tables = page_tables(stopped, VcpuId(vcpu))?;
            let (memory, at) = (stopped.memory(), GuestVirtAddr(address));
            let mut bytes = vec![0; length as usize];
            let done = if as_is {
                let kernel = self.engine.kernel_root();
                let read = paging::read_virt_or(memory, tables, kernel, at, &mut bytes);
                read.map_or_else(|fault| fault.done, |()| bytes.len())
            } else {
                self.engine.read_memory(memory, tables, at, &mut bytes)
            };
            bytes.truncate(done);
            Ok(bytes)
        })
    }

    pub(super) fn check_vcpu(&self, vcpu: u32) -> Result<(), Status> {
        let vcpus = self.config.vcpus;
        if vcpu < vcpus {
            return Ok(());
        }
        let name = &self.name;
        Err(status::invalid(
            "vcpu",
            format!("VM `{name}` has vCPUs 0 to {}", vcpus - 1),
        ))
    }
}

/// Returns the page tables that a vCPU uses.
pub(super) fn page_tables(stopped: &StoppedVm<'_>, vcpu: VcpuId) -> Result<PageTables, Status> {
    let found = stopped.control(vcpu);
    let found = found.map_err(|error| status::vcpu(&error))?;
    found
        .page_tables()
        .map_err(|error| status::precondition(Precondition::State, "guest", error.to_string()))
}
