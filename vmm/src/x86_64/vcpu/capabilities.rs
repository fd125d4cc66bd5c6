//! What a KVM offers for vCPUs beyond what every KVM does.

use kvm_bindings::{
    KVM_CAP_SET_GUEST_DEBUG2, KVM_GUESTDBG_BLOCKIRQ, KVM_SYNC_X86_EVENTS, KVM_SYNC_X86_REGS,
    KVM_SYNC_X86_SREGS,
};
use kvm_ioctls::{Cap, Kvm};

/// Extensions that vCPUs use where they are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VcpuCapabilities {
    /// `KVM_CAP_SYNC_REGS` has the general registers, the control registers and the pending events.
    pub(crate) sync_regs: bool,
    /// `KVM_GUESTDBG_BLOCKIRQ` is among the flags of `KVM_CAP_SET_GUEST_DEBUG2`.
    pub(crate) block_irq: bool,
}

impl VcpuCapabilities {
    /// Asks `kvm` for them.
    pub(crate) fn of(kvm: &Kvm) -> Self {
        let shared = KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS | KVM_SYNC_X86_EVENTS;
        let debug_flags = kvm.check_extension_raw(KVM_CAP_SET_GUEST_DEBUG2.into());
        Self {
            sync_regs: kvm.check_extension_int(Cap::SyncRegs) as u32 & shared == shared,
            block_irq: debug_flags > 0 && debug_flags as u32 & KVM_GUESTDBG_BLOCKIRQ != 0,
        }
    }
}
