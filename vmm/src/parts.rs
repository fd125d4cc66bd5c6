//! What a VM consists of for KVM: its memory, its serial port and its vCPUs.

use std::{io, sync::Arc};

use guest_state::VcpuId;
use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VmFd};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};
use vmm_sys_util::eventfd::EventFd;

use crate::{
    config::{CreateError, VmConfig},
    devices::{console::Console, guest_end::GuestEnd, serial::SerialPort},
    ram::GuestRam,
    vcpu::KvmVcpu,
    x86_64::{
        boot::Entry,
        cpu::{self, Topology},
        layout,
        vcpu::capabilities::VcpuCapabilities,
    },
};

/// Gives the VM its memory. The arena's code is for the guest to read only.
pub(crate) fn map_memory(fd: &VmFd, ram: &GuestRam) -> Result<(), CreateError> {
    let code = ram.arena().code;
    for (slot, region) in ram.all().iter().enumerate() {
        let refused = CreateError::refused("map guest memory");
        let host = ram
            .all()
            .get_host_address(region.start_addr())
            .map_err(|_| CreateError::Refused {
                what: "map guest memory",
                cause: io::ErrorKind::NotFound.into(),
            })?;
        let region = kvm_userspace_memory_region {
            slot: slot as u32,
            flags: if region.start_addr().0 == code.start.0 {
                KVM_MEM_READONLY
            } else {
                0
            },
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: host as u64,
        };
        // SAFETY: the region is the whole of a mapping that `ram` keeps alive, and
        // `Shared`, which holds `ram`, lives as long as any vCPU thread.
        unsafe { fd.set_user_memory_region(region) }.map_err(refused)?;
    }
    Ok(())
}

/// Makes the serial port, and connects its interrupt.
pub(crate) fn serial_port(
    fd: &VmFd,
    console: &Arc<Console>,
    end: GuestEnd,
) -> Result<SerialPort, CreateError> {
    let line = EventFd::new(libc::EFD_NONBLOCK).map_err(|cause| CreateError::Refused {
        what: "make an interrupt event",
        cause,
    })?;
    fd.register_irqfd(&line, layout::COM1_IRQ)
        .map_err(CreateError::refused("connect the serial port"))?;
    Ok(SerialPort::new(line, console, end))
}

/// Makes vCPU `index`.
pub(crate) fn create_vcpu(
    kvm: &Kvm,
    fd: &VmFd,
    index: u32,
    config: &VmConfig,
    entry: Entry,
) -> Result<KvmVcpu, CreateError> {
    let topology = Topology::new(index, config.vcpus, config.numa_nodes);
    let vcpu = fd
        .create_vcpu(u64::from(topology.apic_id()))
        .map_err(CreateError::refused("create a vCPU"))?;
    cpu::configure_cpuid(kvm, &vcpu, &topology)?;
    cpu::configure_common(&vcpu)?;
    if index == 0 {
        cpu::configure_boot_cpu(&vcpu, entry)?;
    }
    Ok(KvmVcpu::new(VcpuId(index), vcpu, VcpuCapabilities::of(kvm)))
}
