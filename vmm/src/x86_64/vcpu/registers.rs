//! Conversion between KVM's registers and those of `guest_state`.

use std::mem::{align_of, offset_of, size_of, transmute};
use std::ptr;

use guest_state::{ControlRegisters, Registers};
use kvm_bindings::{kvm_regs, kvm_sregs};

/// RPL bits of a segment selector.
pub(crate) const RPL: u16 = 3;

const _: () = {
    assert!(size_of::<Registers>() == size_of::<kvm_regs>());
    assert!(align_of::<Registers>() == align_of::<kvm_regs>());
    assert!(offset_of!(Registers, rsi) == offset_of!(kvm_regs, rsi));
    assert!(offset_of!(Registers, rsp) == offset_of!(kvm_regs, rsp));
    assert!(offset_of!(Registers, r8) == offset_of!(kvm_regs, r8));
    assert!(offset_of!(Registers, r15) == offset_of!(kvm_regs, r15));
    assert!(offset_of!(Registers, rip) == offset_of!(kvm_regs, rip));
    assert!(offset_of!(Registers, rflags) == offset_of!(kvm_regs, rflags));
};

/// Converts KVM's general registers.
pub(crate) fn from_kvm(regs: kvm_regs) -> Registers {
    // SAFETY: both are `repr(C)` structures of the same 18 integers in the same order, as the assertions
    // above check; any bytes are valid for them.
    unsafe { transmute(regs) }
}

/// The same registers, where KVM has them.
pub(crate) fn in_kvm(regs: &kvm_regs) -> &Registers {
    // SAFETY: as above, and a reference to the one is well aligned for the other.
    unsafe { &*ptr::from_ref(regs).cast() }
}

/// The same registers, where KVM has them, to be changed.
pub(crate) fn in_kvm_mut(regs: &mut kvm_regs) -> &mut Registers {
    // SAFETY: as above.
    unsafe { &mut *ptr::from_mut(regs).cast() }
}

/// Converts the general registers to KVM's.
pub(crate) fn to_kvm(registers: Registers) -> kvm_regs {
    // SAFETY: as above.
    unsafe { transmute(registers) }
}

/// Takes the control registers out of KVM's system registers.
pub(crate) fn control(sregs: &kvm_sregs) -> ControlRegisters {
    ControlRegisters {
        cr0: sregs.cr0,
        cr2: sregs.cr2,
        cr3: sregs.cr3,
        cr4: sregs.cr4,
        efer: sregs.efer,
        fs_base: sregs.fs.base,
        gs_base: sregs.gs.base,
        idt_base: sregs.idt.base,
        idt_limit: sregs.idt.limit,
        // The privilege level is that of SS (SDM vol. 3, 5.5); its RPL tells it on every KVM.
        cpl: (sregs.ss.selector & RPL) as u8,
        code64: sregs.cs.l == 1,
    }
}

/// What a vCPU has besides general and control registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is the register of that name")]
pub struct SegmentRegisters {
    pub cs: u16,
    pub ss: u16,
    pub ds: u16,
    pub es: u16,
    pub fs: u16,
    pub gs: u16,
    pub cr8: u64,
    /// The MSR `KERNEL_GS_BASE`.
    pub kernel_gs_base: u64,
}

/// Takes the segment registers out of KVM's system registers.
pub(crate) fn segments(sregs: &kvm_sregs, kernel_gs_base: u64) -> SegmentRegisters {
    SegmentRegisters {
        cs: sregs.cs.selector,
        ss: sregs.ss.selector,
        ds: sregs.ds.selector,
        es: sregs.es.selector,
        fs: sregs.fs.selector,
        gs: sregs.gs.selector,
        cr8: sregs.cr8,
        kernel_gs_base,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_go_to_kvm_and_back_unchanged() {
        let ours = Registers {
            rax: 1,
            rbx: 2,
            rcx: 3,
            rdx: 4,
            rsi: 5,
            rdi: 6,
            rsp: 7,
            rbp: 8,
            r8: 9,
            r9: 10,
            r10: 11,
            r11: 12,
            r12: 13,
            r13: 14,
            r14: 15,
            r15: 16,
            rip: 17,
            rflags: 18,
        };
        let theirs = to_kvm(ours);
        assert_eq!(
            (theirs.rax, theirs.rbx, theirs.rcx, theirs.rdx),
            (1, 2, 3, 4)
        );
        assert_eq!(
            (theirs.rsi, theirs.rdi, theirs.rsp, theirs.rbp),
            (5, 6, 7, 8)
        );
        let upper = [theirs.r8, theirs.r9, theirs.r10, theirs.r11];
        assert_eq!(upper, [9, 10, 11, 12]);
        let upper = [theirs.r12, theirs.r13, theirs.r14, theirs.r15];
        assert_eq!(upper, [13, 14, 15, 16]);
        assert_eq!((theirs.rip, theirs.rflags), (17, 18));
        assert_eq!(from_kvm(theirs), ours);
        assert_eq!(*in_kvm(&theirs), ours);
        let mut changed = theirs;
        in_kvm_mut(&mut changed).rip = 19;
        assert_eq!((changed.rip, changed.rflags), (19, 18));
    }
}
