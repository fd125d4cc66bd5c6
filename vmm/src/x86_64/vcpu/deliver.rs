//! Reinjecting a guest's own int3, by delivering the exception here.
//!
//! `KVM_GUESTDBG_INJECT_BP` loses some: of 300 int3s in user mode, KVM of Linux 6.1 on a CPU
//! without next-RIP saving delivered 265 to 295.
//!
//! `KVM_GUESTDBG_INJECT_BP` has KVM decode the instruction at RIP when the guest
//! is entered, to find the return address (arch/x86/kvm/svm/svm.c,
//! `svm_update_soft_interrupt_rip`). By then another vCPU may have replaced the
//! int3: Linux does so whenever it patches its text, and the return address is
//! wrong. Delivery is a few memory accesses with nothing to find out: the
//! instruction was an int3, of one byte.

use guest_state::x86_64::control::{cr4, efer};
use guest_state::x86_64::flags::{IF, NT, RF, TF, VM};
use guest_state::x86_64::idt::{GATE_LEN, GateDescriptor};
use guest_state::x86_64::supervisor::SupervisorMemory;
use guest_state::x86_64::vector;
use guest_state::{GuestVirtAddr, Registers};
use kvm_bindings::{kvm_segment, kvm_sregs};

use super::{exit::INT3_LEN, registers::RPL};

/// Gate types: interrupt gate, which clears IF, and trap gate.
const INTERRUPT_GATE: u8 = 0xe;
const TRAP_GATE: u8 = 0xf;
/// Flags that delivery clears besides: TF, NT, RF, VM (SDM vol. 3, 6.12.1.3).
const CLEARED: u64 = TF | NT | RF | VM;
/// Offset of the kernel's stack pointer in the TSS (SDM vol. 3, 7.7).
const TSS_RSP0: u64 = 4;
/// Offset of the first interrupt stack pointer in the TSS (SDM vol. 3, 7.7).
const TSS_IST1: u64 = 0x24;

/// A vCPU after the delivery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Delivered {
    pub(crate) registers: Registers,
    /// Code and stack segment, if the privilege level has changed.
    pub(crate) segments: Option<(kvm_segment, kvm_segment)>,
}

/// Delivers the breakpoint exception of an int3 at RIP, as the processor does
/// from kernel or user mode to kernel mode (SDM vol. 3, 6.14). Returns the vCPU's state after it,
/// in which no interrupt shadow is left.
///
/// Returns None in any other case, such as a stack that can't be written: the processor raises what is
/// due then. Nothing of the guest has changed but memory below the stack pointer.
pub(crate) fn breakpoint(
    registers: &Registers,
    sregs: &kvm_sregs,
    memory: &SupervisorMemory<'_>,
) -> Option<Delivered> {
    if sregs.efer & efer::LMA == 0 || sregs.cr4 & cr4::FRED != 0 {
        return None;
    }
    let privilege = sregs.ss.selector & RPL;
    // Compatibility mode is user mode only.
    if privilege == 0 && sregs.cs.l != 1 {
        return None;
    }
    let at = GateDescriptor::address(sregs.idt.base, sregs.idt.limit, vector::BREAKPOINT)?;
    let mut gate = [0; GATE_LEN];
    memory.read(at, &mut gate).ok()?;
    let gate = GateDescriptor::from_bytes(gate);
    let selector = gate.selector;
    // int3 may go through a gate of its own privilege or a lower one only.
    let allowed = u16::from(gate.privilege()) >= privilege;
    if !gate.is_present() || !allowed || selector & RPL != 0 {
        return None;
    }
    if privilege == 0 && selector != sregs.cs.selector {
        return None;
    }
    let cleared = match gate.kind() {
        INTERRUPT_GATE => CLEARED | IF,
        TRAP_GATE => CLEARED,
        _ => return None,
    };
    let in_tss = |offset| {
        let at = GuestVirtAddr(sregs.tr.base.wrapping_add(offset));
        memory.read_u64(at).ok()
    };
    let stack = match u64::from(gate.stack) {
        0 if privilege == 0 => registers.rsp,
        0 => in_tss(TSS_RSP0)?,
        n => in_tss(TSS_IST1 + (n - 1) * 8)?,
    };
    let frame = [
        registers.rip.wrapping_add(INT3_LEN),
        u64::from(sregs.cs.selector),
        registers.rflags,
        registers.rsp,
        u64::from(sregs.ss.selector),
    ];
    let bytes: Vec<u8> = frame.iter().flat_map(|word| word.to_le_bytes()).collect();
    let rsp = (stack & !0xf).wrapping_sub(bytes.len() as u64);
    memory.write(GuestVirtAddr(rsp), &bytes).ok()?;
    let registers = Registers {
        rip: gate.handler.0,
        rsp,
        rflags: registers.rflags & !cleared,
        ..*registers
    };
    let segments = (privilege != 0).then(|| (kernel_code(selector), kernel_stack()));
    Some(Delivered {
        registers,
        segments,
    })
}

/// A 64-bit code segment of the kernel's: base and limit don't count.
fn kernel_code(selector: u16) -> kvm_segment {
    kvm_segment {
        limit: u32::MAX,
        selector,
        type_: 0xb,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    }
}

/// The null selector, which the processor loads into SS when it changes to the
/// kernel's privilege level (SDM vol. 3, 6.14.4).
fn kernel_stack() -> kvm_segment {
    kvm_segment {
        unusable: 1,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use guest_state::testing::TestMemory;
    use guest_state::{ControlRegisters, GuestMemory, GuestPhysAddr};

    use super::*;

    /// Without paging an address is its own translation.
    fn of(memory: &TestMemory) -> SupervisorMemory<'_> {
        SupervisorMemory::new(memory, &ControlRegisters::default()).unwrap()
    }

    fn guest(gate: [u8; 16]) -> (Registers, kvm_sregs, TestMemory) {
        let memory = TestMemory::new(0x1000);
        memory.write(GuestPhysAddr(0x130), &gate).unwrap();
        // IST2 of the TSS at 0x200.
        memory.write_u64(GuestPhysAddr(0x22c), 0xe08).unwrap();
        let mut sregs = kvm_sregs {
            efer: efer::LMA,
            ..Default::default()
        };
        sregs.cs.l = 1;
        sregs.cs.selector = 0x10;
        sregs.ss.selector = 0x18;
        sregs.idt.base = 0x100;
        sregs.idt.limit = 0xfff;
        sregs.tr.base = 0x200;
        let registers = Registers {
            rip: 0x5000,
            rsp: 0xf08,
            rflags: 0x1_0346,
            rax: 7,
            ..Default::default()
        };
        (registers, sregs, memory)
    }

    fn gate(kind: u8, ist: u8) -> [u8; 16] {
        [
            0x34, 0x12, 0x10, 0, ist, kind, 0x78, 0x56, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
        ]
    }

    /// What was pushed at `rsp`.
    fn frame(memory: &TestMemory, rsp: u64) -> [u64; 5] {
        let at = |index: u64| GuestPhysAddr(rsp + index * 8);
        [0, 1, 2, 3, 4].map(|index| memory.read_u64(at(index)).unwrap())
    }

    #[test]
    fn the_handler_gets_the_frame_that_a_processor_pushes() {
        for (kind, ist, rflags, rsp) in [
            (0x8e, 0, 0x46, 0xed8),
            (0x8f, 0, 0x246, 0xed8),
            (0xee, 2, 0x46, 0xdd8),
        ] {
            let (regs, sregs, memory) = guest(gate(kind, ist));
            let Delivered {
                registers: after,
                segments,
            } = breakpoint(&regs, &sregs, &of(&memory)).unwrap();
            assert_eq!(segments, None);
            assert_eq!(after.rip, 0xffff_ffff_5678_1234);
            assert_eq!((after.rflags, after.rsp, after.rax), (rflags, rsp, 7));
            assert_eq!(frame(&memory, rsp), [0x5001, 0x10, 0x1_0346, 0xf08, 0x18]);
        }
    }

    #[test]
    fn a_handler_of_user_mode_s_int3_gets_the_kernel_s_stack_and_segments() {
        // A gate for all, by the stack of the TSS and by IST2.
        for (ist, rsp) in [(0, 0xcd8), (2, 0xdd8)] {
            let (regs, mut sregs, memory) = guest(gate(0xee, ist));
            memory.write_u64(GuestPhysAddr(0x204), 0xd08).unwrap();
            (sregs.cs.selector, sregs.ss.selector) = (0x33, 0x2b);
            let after = breakpoint(&regs, &sregs, &of(&memory)).unwrap();
            let (code, stack) = after.segments.unwrap();
            assert_eq!((code.selector, code.l, code.dpl), (0x10, 1, 0));
            assert_eq!((stack.selector, stack.dpl), (0, 0));
            assert_eq!(after.registers.rsp, rsp);
            assert_eq!(frame(&memory, rsp), [0x5001, 0x33, 0x1_0346, 0xf08, 0x2b]);
        }
    }

    #[test]
    fn an_exception_that_is_no_plain_delivery_is_left_to_kvm() {
        let refused = |change: fn(&mut Registers, &mut kvm_sregs), gate: [u8; 16]| {
            let (mut regs, mut sregs, memory) = guest(gate);
            change(&mut regs, &mut sregs);
            assert_eq!(breakpoint(&regs, &sregs, &of(&memory)), None);
        };
        let good = gate(0x8e, 0);
        refused(|_, sregs| sregs.cs.selector = 0x20, good);
        refused(|_, sregs| sregs.ss.selector = 0x2b, good);
        refused(|_, sregs| sregs.efer = 0, good);
        refused(|_, sregs| sregs.cs.l = 0, good);
        refused(|_, sregs| sregs.cr4 = cr4::FRED, good);
        refused(|_, sregs| sregs.idt.limit = 0x3e, good);
        refused(|_, sregs| sregs.idt.base = 0x10_0000, good);
        refused(|regs, _| regs.rsp = 0x10_0000, good);
        refused(|_, _| {}, gate(0x0e, 0));
        refused(|_, _| {}, gate(0x85, 0));
    }
}
