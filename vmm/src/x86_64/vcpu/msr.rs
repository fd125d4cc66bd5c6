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

/// Where `syscall` goes (AMD APM vol. 2, 6.1.1).
pub(crate) const LSTAR: u32 = 0xc000_0082;
/// What `swapgs` makes the base of GS (SDM vol. 4, table 2-2).
pub(crate) const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// What is added to the host's counter to get the vCPU's, where that stays the
/// same. A host whose own counter is unstable has KVM compute another offset each
/// time it loads a vCPU (arch/x86/kvm/x86.c, `kvm_arch_vcpu_load`), so that two
/// system calls in a row tell different ones. Also None where KVM doesn't tell it
/// (before Linux 5.16).
pub(crate) fn steady_tsc_offset(vcpu: &VcpuFd) -> Option<u64> {
    let offset = tsc_offset(vcpu)?;
    (tsc_offset(vcpu)? == offset).then_some(offset)
}

/// The vCPU's counter as KVM has it now; one system call.
pub(crate) fn guest_tsc(vcpu: &VcpuFd) -> Option<u64> {
    read(vcpu, MSR_TSC)
}

fn tsc_offset(vcpu: &VcpuFd) -> Option<u64> {
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

/// The value of an MSR, or None where KVM doesn't know it.
pub(crate) fn read(vcpu: &VcpuFd, index: u32) -> Option<u64> {
    let mut msrs = one(index, 0)?;
    let read = vcpu.get_msrs(&mut msrs).ok()?;
    (read == 1).then(|| msrs.as_slice()[0].data)
}

/// Sets an MSR. Returns false where KVM doesn't know it or refuses the value.
pub(crate) fn write(vcpu: &VcpuFd, index: u32, data: u64) -> bool {
    let written = one(index, data).map(|msrs| vcpu.set_msrs(&msrs));
    matches!(written, Some(Ok(1)))
}

fn one(index: u32, data: u64) -> Option<Msrs> {
    Msrs::from_entries(&[kvm_msr_entry {
        index,
        data,
        ..Default::default()
    }])
    .ok()
}
