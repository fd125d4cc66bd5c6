//! Pending events of a vCPU: read, changed, and set again.
//!
//! `KVM_SET_VCPU_EVENTS` sets what is injected and masked, which only the vCPU itself changes, and
//! of the rest what `flags` names (arch/x86/kvm/x86.c, `kvm_vcpu_ioctl_x86_set_vcpu_events`).
//! `KVM_GET_VCPU_EVENTS` names all of it. Another vCPU may send an NMI at any time: if pending NMIs
//! were set as they were read, one that came in between would be lost.

use kvm_bindings::kvm_vcpu_events;
use kvm_ioctls::VcpuFd;

type Errno = kvm_ioctls::Error;

/// `KVM_X86_SHADOW_INT_STI` of arch/x86/include/uapi/asm/kvm.h.
const SHADOW_STI: u8 = 2;
/// `KVM_VCPUEVENT_VALID_SHADOW` of the same.
const VALID_SHADOW: u32 = 4;

/// The form in which KVM tells and takes an interrupt shadow, as `sti` leaves it.
pub(crate) const fn shadow(on: bool) -> u8 {
    if on { SHADOW_STI } else { 0 }
}

/// Pending events of a vCPU that is out of guest mode.
pub(crate) struct PendingEvents(kvm_vcpu_events);

impl PendingEvents {
    /// Reads the events. Setting them again changes nothing.
    pub(crate) fn read(vcpu: &VcpuFd) -> Result<Self, Errno> {
        let mut events = vcpu.get_vcpu_events()?;
        events.flags = 0;
        Ok(Self(events))
    }

    /// The interrupt shadow, `KVM_X86_SHADOW_INT_*`.
    pub(crate) fn shadow(&self) -> u8 {
        self.0.interrupt.shadow
    }

    /// Sets the interrupt shadow, in the form of [`shadow`].
    pub(crate) fn set_shadow(&mut self, shadow: u8) {
        self.0.interrupt.shadow = shadow;
        self.0.flags |= VALID_SHADOW;
    }

    /// Adds an exception that is delivered when the vCPU enters guest mode.
    pub(crate) fn inject(&mut self, vector: u8, error_code: Option<u32>) {
        self.0.exception.injected = 1;
        self.0.exception.nr = vector;
        self.0.exception.has_error_code = error_code.is_some().into();
        self.0.exception.error_code = error_code.unwrap_or(0);
    }

    /// Sets the events in KVM.
    pub(crate) fn write(&self, vcpu: &VcpuFd) -> Result<(), Errno> {
        vcpu.set_vcpu_events(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use kvm_ioctls::{Kvm, VmFd};

    use super::*;

    fn vcpu() -> Option<(VmFd, VcpuFd)> {
        let kvm = Kvm::new()
            .map_err(|error| println!("skipped: no KVM here: {error}"))
            .ok()?;
        let vm = kvm.create_vm().unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        Some((vm, vcpu))
    }

    #[test]
    fn an_nmi_that_comes_between_reading_and_setting_stays_pending() {
        let Some((_vm, vcpu)) = vcpu() else { return };
        let changes: [fn(&mut PendingEvents); 3] = [
            |events| events.set_shadow(shadow(true)),
            |events| events.set_shadow(shadow(false)),
            |events| events.inject(14, Some(2)),
        ];
        for (number, change) in (1..).zip(changes) {
            let mut events = PendingEvents::read(&vcpu).unwrap();
            vcpu.nmi().unwrap();
            change(&mut events);
            events.write(&vcpu).unwrap();
            let pending = vcpu.get_vcpu_events().unwrap().nmi.pending;
            assert_eq!(pending, 1, "after change {number}");
            // Back to none.
            vcpu.set_vcpu_events(&kvm_vcpu_events {
                flags: 1,
                ..Default::default()
            })
            .unwrap();
        }
    }

    #[test]
    fn vcpu_events_are_read_as_they_were_set() {
        let Some((_vm, vcpu)) = vcpu() else { return };
        let mut events = PendingEvents::read(&vcpu).unwrap();
        assert_eq!(events.shadow(), shadow(false));
        events.set_shadow(shadow(true));
        events.inject(14, Some(2));
        events.write(&vcpu).unwrap();
        let after = PendingEvents::read(&vcpu).unwrap();
        assert_eq!(after.shadow(), shadow(true));
        let exception = after.0.exception;
        assert_eq!((exception.injected, exception.nr), (1, 14));
        assert_eq!((exception.has_error_code, exception.error_code), (1, 2));
    }
}
