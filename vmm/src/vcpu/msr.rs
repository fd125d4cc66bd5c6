//! Model-specific registers, and the distance between the host's and a guest's
//! time stamp counters.

use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO, Msrs, kvm_device_attr, kvm_msr_entry,
};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::{ioctl::ioctl_with_ref, ioctl_iow_nr};

ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);

/// `IA32_TIME_STAMP_COUNTER` (SDM vol. 4, table 2-2).
const MSR_TSC: u32 = 0x10;

/// What to add to the host's counter to get the vCPU's. Exact where KVM tells
/// it (`KVM_VCPU_TSC_OFFSET`, Linux 5.16), else within about a microsecond.
pub(super) fn tsc_offset(vcpu: &VcpuFd) -> u64 {
    exact_offset(vcpu)
        .or_else(|| measured_offset(vcpu))
        .unwrap_or(0)
}

fn exact_offset(vcpu: &VcpuFd) -> Option<u64> {
    let mut offset = 0u64;
    let attribute = kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: u64::from(KVM_VCPU_TSC_OFFSET),
        addr: &raw mut offset as u64,
        flags: 0,
    };
    // SAFETY: the ioctl reads `attribute` and writes the 8 bytes that its `addr`
    // points to, both alive here.
    let result = unsafe { ioctl_with_ref(vcpu, KVM_GET_DEVICE_ATTR(), &attribute) };
    (result == 0).then_some(offset)
}

fn measured_offset(vcpu: &VcpuFd) -> Option<u64> {
    // SAFETY: as in VcpuContext::tsc.
    let host = unsafe { core::arch::x86_64::_rdtsc() };
    Some(read(vcpu, MSR_TSC)?.wrapping_sub(host))
}

/// The value of an MSR, where KVM knows it.
pub(super) fn read(vcpu: &VcpuFd, index: u32) -> Option<u64> {
    let mut msrs = Msrs::from_entries(&[kvm_msr_entry {
        index,
        ..Default::default()
    }])
    .ok()?;
    let read = vcpu.get_msrs(&mut msrs).ok()?;
    (read == 1).then(|| msrs.as_slice()[0].data)
}
