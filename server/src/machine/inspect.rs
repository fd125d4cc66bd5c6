//! Looking into a stopped guest: registers and memory.

use guest_state::x86_64::paging::{self, PageTables};
use guest_state::{GuestVirtAddr, StoppedGuest, VcpuId};
use tonic::Status;
use vmm::StoppedVm;
use vmprobe_proto::v1;

use super::Machine;
use crate::{convert, status};

impl Machine {
    /// The general registers of a vCPU. Blocks.
    pub fn read_registers(&self, vcpu: u32) -> Result<v1::Registers, Status> {
        self.check_vcpu(vcpu)?;
        self.stopped(|stopped| {
            let found = stopped.registers(VcpuId(vcpu));
            let found = found.map_err(|error| status::vcpu(&error))?;
            Ok(convert::registers(&found))
        })
    }

    /// Guest memory at a virtual address, up to the first page that is mapped neither for the vCPU nor,
    /// of the kernel's addresses, for the kernel. Probes aren't seen in it, unless it is read as it is. Blocks.
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

/// The page tables that a vCPU uses.
pub(super) fn page_tables(stopped: &StoppedVm<'_>, vcpu: VcpuId) -> Result<PageTables, Status> {
    let found = stopped.control(vcpu);
    let found = found.map_err(|error| status::vcpu(&error))?;
    found
        .page_tables()
        .map_err(|error| Status::failed_precondition(error.to_string()))
}
