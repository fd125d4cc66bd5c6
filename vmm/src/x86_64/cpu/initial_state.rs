//! The registers with which a vCPU starts.

use guest_state::x86_64::control::{cr0, cr4, efer};
use kvm_bindings::{kvm_dtable, kvm_fpu, kvm_lapic_state, kvm_regs, kvm_sregs};
use kvm_ioctls::VcpuFd;

use super::CpuError;
use crate::x86_64::{
    boot::{Entry, gdt},
    layout,
    vcpu::msr,
};

/// CR0 (SDM vol. 3, 2.5): protection, extension type, numeric error, paging.
/// Without the reset state's "cache disable" and "not write-through".
const CR0: u64 = cr0::PE | cr0::ET | cr0::NE | cr0::PG;
/// CR0 at an entry by PVH: protection and what is always set.
const PVH_CR0: u64 = cr0::PE | cr0::ET;
/// CR4: physical address extension, which 64-bit paging needs.
const CR4: u64 = cr4::PAE;
/// EFER: long mode enabled and active.
const EFER: u64 = efer::LME | efer::LMA;
/// RFLAGS: the bit that is always set; interrupts are off.
const RFLAGS: u64 = 2;

/// `IA32_MISC_ENABLE` and its "fast strings" (SDM vol. 4, table 2-2).
const MISC_ENABLE: u32 = 0x1a0;
const FAST_STRINGS: u64 = 1;
/// `IA32_MTRR_DEF_TYPE`: MTRRs on, all memory write-back (SDM vol. 3, 12.11.2.1).
const MTRR_DEF_TYPE: u32 = 0x2ff;
const MTRR_WRITE_BACK: u64 = 1 << 11 | 6;

/// Local vector table entries of the local APIC, by byte offset (SDM vol. 3,
/// 11.5.1), and their delivery modes.
const LVT_LINT0: usize = 0x350;
const LVT_LINT1: usize = 0x360;
const DELIVERY_MODE: u32 = 7 << 8;
const DELIVER_NMI: u32 = 4 << 8;
const DELIVER_EXTINT: u32 = 7 << 8;

/// x87 control word and MXCSR after a reset (SDM vol. 1, 8.1.5 and 10.2.3).
const FPU_CONTROL: u16 = 0x37f;
const MXCSR: u32 = 0x1f80;

/// Sets the boot CPU up as the 64-bit boot protocol wants it (Linux
/// `Documentation/arch/x86/boot.rst`): long mode, flat segments, the page tables
/// that `boot::load` made, RSI at the zero page.
///
/// For PVH (Xen `docs/misc/pvh.pandoc`): protected mode without paging, flat segments, EBX at the start info.
pub(crate) fn configure_boot_cpu(vcpu: &VcpuFd, entry: Entry) -> Result<(), CpuError> {
    let mut sregs = vcpu
        .get_sregs()
        .map_err(CpuError::refused("read the control registers"))?;
    let registers = match entry {
        Entry::Bits64(at) => {
            enter_long_mode(&mut sregs);
            entry_registers(at)
        }
        Entry::Pvh(at) => {
            enter_protected_mode(&mut sregs);
            pvh_registers(at)
        }
    };
    vcpu.set_sregs(&sregs)
        .map_err(CpuError::refused("set the control registers"))?;
    vcpu.set_regs(&registers)
        .map_err(CpuError::refused("set the registers"))
}

fn enter_long_mode(sregs: &mut kvm_sregs) {
    sregs.cr0 = CR0;
    sregs.cr3 = layout::PAGE_TABLES;
    sregs.cr4 = CR4;
    sregs.efer = EFER;
    load_segments(sregs, gdt::CODE);
}

fn enter_protected_mode(sregs: &mut kvm_sregs) {
    sregs.cr0 = PVH_CR0;
    sregs.cr3 = 0;
    sregs.cr4 = 0;
    sregs.efer = 0;
    load_segments(sregs, gdt::CODE_32);
}

fn load_segments(sregs: &mut kvm_sregs, code: u16) {
    sregs.gdt = gdt::register();
    // No interrupt can be taken: a fault before the kernel has its own table is a
    // triple fault, not a jump to nowhere.
    sregs.idt = kvm_dtable::default();
    sregs.cs = gdt::segment(code);
    let data = gdt::segment(gdt::DATA);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = gdt::segment(gdt::TASK);
}

fn entry_registers(entry: u64) -> kvm_regs {
    kvm_regs {
        rip: entry,
        rsi: layout::ZERO_PAGE,
        rsp: layout::BOOT_STACK,
        rbp: layout::BOOT_STACK,
        rflags: RFLAGS,
        ..kvm_regs::default()
    }
}

fn pvh_registers(entry: u64) -> kvm_regs {
    kvm_regs {
        rip: entry,
        rbx: layout::START_INFO,
        rflags: RFLAGS,
        ..kvm_regs::default()
    }
}

/// Sets up what every vCPU has from its reset, or from firmware on a real
/// machine: memory types, local interrupt pins, FPU.
pub(crate) fn configure_common(vcpu: &VcpuFd) -> Result<(), CpuError> {
    let misc = msr::read(vcpu, MISC_ENABLE).unwrap_or(0);
    write_msr(vcpu, MISC_ENABLE, misc | FAST_STRINGS);
    write_msr(vcpu, MTRR_DEF_TYPE, MTRR_WRITE_BACK);

    let mut lapic = vcpu
        .get_lapic()
        .map_err(CpuError::refused("read the local APIC"))?;
    set_delivery_mode(&mut lapic, LVT_LINT0, DELIVER_EXTINT);
    set_delivery_mode(&mut lapic, LVT_LINT1, DELIVER_NMI);
    vcpu.set_lapic(&lapic)
        .map_err(CpuError::refused("set the local APIC"))?;

    let fpu = kvm_fpu {
        fcw: FPU_CONTROL,
        mxcsr: MXCSR,
        ..kvm_fpu::default()
    };
    vcpu.set_fpu(&fpu).map_err(CpuError::refused("set the FPU"))
}

/// Sets an MSR where KVM has it. The guest gets along with the default.
fn write_msr(vcpu: &VcpuFd, index: u32, data: u64) {
    if !msr::write(vcpu, index, data) {
        tracing::debug!("KVM does not take {data:#x} for MSR {index:#x}, which keeps its default");
    }
}

fn set_delivery_mode(lapic: &mut kvm_lapic_state, register: usize, mode: u32) {
    // The registers are declared as C chars.
    let Some(bytes) = lapic.regs.get_mut(register..register + 4) else {
        return;
    };
    let mut value = [0; 4];
    for (to, from) in value.iter_mut().zip(&*bytes) {
        *to = from.cast_unsigned();
    }
    let value = u32::from_le_bytes(value) & !DELIVERY_MODE | mode;
    for (to, from) in bytes.iter_mut().zip(value.to_le_bytes()) {
        *to = from.cast_signed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_cpu_is_in_64_bit_mode_with_interrupts_off() {
        let mut sregs = kvm_sregs {
            cr0: 0x6000_0010,
            ..kvm_sregs::default()
        };
        enter_long_mode(&mut sregs);
        assert_eq!(
            (sregs.cr0, sregs.cr4, sregs.efer),
            (0x8000_0031, 0x20, 0x500)
        );
        assert_eq!((sregs.cs.selector, sregs.cs.l), (0x10, 1));
        assert_eq!((sregs.ds.selector, sregs.ss.selector), (0x18, 0x18));
        let regs = entry_registers(0x100_0000);
        assert_eq!(
            (regs.rip, regs.rsi, regs.rflags),
            (0x100_0000, layout::ZERO_PAGE, 2)
        );
        assert_eq!(regs.rsp % 16, 0);
    }

    #[test]
    fn by_pvh_the_boot_cpu_is_in_flat_32_bit_mode_without_paging() {
        let mut sregs = kvm_sregs {
            efer: EFER,
            ..kvm_sregs::default()
        };
        enter_protected_mode(&mut sregs);
        assert_eq!((sregs.cr0, sregs.cr4, sregs.efer), (0x11, 0, 0));
        let code = sregs.cs;
        assert_eq!(
            (code.base, code.limit, code.db, code.l),
            (0, u32::MAX, 1, 0)
        );
        assert_eq!((sregs.ds.limit, sregs.ss.selector), (u32::MAX, 0x18));
        let regs = pvh_registers(0x100_0040);
        assert_eq!(
            (regs.rip, regs.rbx, regs.rflags),
            (0x100_0040, layout::START_INFO, 2)
        );
    }

    #[test]
    fn a_delivery_mode_leaves_the_rest_of_its_register() {
        let mut lapic = kvm_lapic_state { regs: [0; 1024] };
        lapic.regs[LVT_LINT1 + 2] = 1; // masked
        lapic.regs[LVT_LINT1] = -1; // vector
        lapic.regs[LVT_LINT1 + 1] = 0x23;
        set_delivery_mode(&mut lapic, LVT_LINT1, DELIVER_NMI);
        assert_eq!(lapic.regs[LVT_LINT1..LVT_LINT1 + 4], [-1, 0x24, 1, 0]);
        assert_eq!(lapic.regs[LVT_LINT1 + 4..], [0; 1024 - LVT_LINT1 - 4]);
    }
}
