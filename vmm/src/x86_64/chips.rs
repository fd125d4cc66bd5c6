//! The interrupt controllers and the timer of a PC, which KVM has within itself.

use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config};
use kvm_ioctls::VmFd;

use crate::{config::CreateError, x86_64::layout};

/// Creates the local APICs, the I/O APIC, the PICs and the PIT of a VM that has no vCPU yet
/// (Documentation/virt/kvm/api.rst, `KVM_CREATE_IRQCHIP` and `KVM_CREATE_PIT2`), and gives KVM the
/// memory that it needs for itself.
///
/// # Errors
/// [`CreateError::Refused`].
pub(crate) fn create(vm: &VmFd) -> Result<(), CreateError> {
    vm.set_identity_map_address(layout::KVM_IDENTITY_MAP)
        .map_err(CreateError::refused("place its identity map"))?;
    vm.set_tss_address(layout::KVM_TSS as usize)
        .map_err(CreateError::refused("place its task state segment"))?;
    vm.create_irq_chip()
        .map_err(CreateError::refused("create the interrupt controllers"))?;
    // Linux doesn't use it under hardware-reduced ACPI; a kernel without ACPI does.
    let pit = kvm_pit_config {
        flags: KVM_PIT_SPEAKER_DUMMY,
        ..Default::default()
    };
    vm.create_pit2(pit)
        .map_err(CreateError::refused("create the interval timer"))
}
