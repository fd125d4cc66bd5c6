//! Registers at entry: the state that the 64-bit boot protocol asks for
//! (Linux `Documentation/arch/x86/boot.rst`, "64-bit Boot Protocol").

use kvm_bindings::{Msrs, kvm_fpu, kvm_lapic_state, kvm_msr_entry, kvm_regs};
use kvm_ioctls::VcpuFd;

use super::{CpuError, refused};
use crate::{boot::gdt, layout};

/// CR0: protection, extension type, numeric error, write protect, paging
/// (SDM vol. 3, 2.5).
const CR0: u64 = 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 31;
/// CR4: physical address extension.
const CR4: u64 = 1 << 5;
/// EFER: long mode enabled and active.
const EFER: u64 = 1 << 8 | 1 << 10;
/// RFLAGS: bit 1 is always set.
const RFLAGS: u64 = 1 << 1;

/// `IA32_MISC_ENABLE` and its bit for fast string operations (SDM vol. 4, 2.1).
const MSR_MISC_ENABLE: u32 = 0x1a0;
const FAST_STRINGS: u64 = 1;
/// `IA32_MTRR_DEF_TYPE`: MTRRs enabled, memory write-back (SDM vol. 3, 12.11.2.1).
const MSR_MTRR_DEF_TYPE: u32 = 0x2ff;
const MTRR_ON_WRITE_BACK: u64 = 1 << 11 | 6;

/// Local vector table entries for LINT0 and LINT1 (SDM vol. 3, figure 11-8) and
/// their delivery modes.
const APIC_LVT0: usize = 0x350;
const APIC_LVT1: usize = 0x360;
const EXTERNAL: u32 = 0b111 << 8;
const NMI: u32 = 0b100 << 8;
const DELIVERY_MODE: u32 = 0b111 << 8;

/// x87 control word and MXCSR after a reset (SDM vol. 3, table 10-1).
const FPU_CONTROL: u16 = 0x37f;
const MXCSR: u32 = 0x1f80;

/// Puts the boot processor at the kernel's 64-bit entry point.
pub(crate) fn configure_boot_cpu(vcpu: &VcpuFd, entry: u64) -> Result<(), CpuError> {
    let mut sregs = vcpu.get_sregs().map_err(refused("control registers"))?;
    let data = gdt::segment(gdt::DATA);
    sregs.cs = gdt::segment(gdt::CODE);
    for segment in
        [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss]
    {
        *segment = data;
    }
    sregs.tr = gdt::segment(gdt::TASK);
    sregs.gdt = gdt::register();
    sregs.idt.limit = 0;
    sregs.cr0 = CR0;
    sregs.cr3 = layout::PAGE_TABLES;
    sregs.cr4 = CR4;
    sregs.efer = EFER;
    vcpu.set_sregs(&sregs).map_err(refused("control registers"))?;
    let regs = kvm_regs {
        rip: entry,
        rsp: layout::BOOT_STACK,
        rsi: layout::ZERO_PAGE,
        rflags: RFLAGS,
        ..kvm_regs::default()
    };
    vcpu.set_regs(&regs).map_err(refused("general registers"))
}

/// What firmware would have set on every processor.
pub(crate) fn configure_common(vcpu: &VcpuFd) -> Result<(), CpuError> {
    for (index, data) in
        [(MSR_MISC_ENABLE, FAST_STRINGS), (MSR_MTRR_DEF_TYPE, MTRR_ON_WRITE_BACK)]
    {
        let entry = kvm_msr_entry { index, data, ..Default::default() };
        let set = Msrs::from_entries(&[entry]).ok().and_then(|msrs| vcpu.set_msrs(&msrs).ok());
        // Hints only: a KVM without them runs Linux as well.
        if set != Some(1) {
            tracing::debug!("this KVM has no MSR {index:#x}");
        }
    }
    let fpu = kvm_fpu { fcw: FPU_CONTROL, mxcsr: MXCSR, ..Default::default() };
    vcpu.set_fpu(&fpu).map_err(refused("floating-point state"))?;
    let mut lapic = vcpu.get_lapic().map_err(refused("local APIC"))?;
    set_delivery(&mut lapic, APIC_LVT0, EXTERNAL);
    set_delivery(&mut lapic, APIC_LVT1, NMI);
    vcpu.set_lapic(&lapic).map_err(refused("local APIC"))
}

fn set_delivery(lapic: &mut kvm_lapic_state, register: usize, mode: u32) {
    let bytes = &mut lapic.regs[register..register + 4];
    let mut value = 0u32;
    for (shift, byte) in bytes.iter().enumerate() {
        value |= u32::from(*byte as u8) << (8 * shift);
    }
    let value = (value & !DELIVERY_MODE | mode).to_le_bytes();
    for (to, from) in bytes.iter_mut().zip(value) {
        *to = from as _;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_mode_leaves_the_other_bits() {
        let mut lapic = kvm_lapic_state::default();
        lapic.regs[APIC_LVT1 + 2] = 1;
        set_delivery(&mut lapic, APIC_LVT1, NMI);
        assert_eq!(lapic.regs[APIC_LVT1..APIC_LVT1 + 4], [0, 4, 1, 0]);
    }
}
