//! Int3s of the guest's own, given back to it.

use crate::{
    report::on_kvm,
    tiny::{CODE_SELECTOR, IDT_REGISTER, Tiny, catch_int3s, guest, power_off},
};
use guest_state::{Action, GuestPhysAddr, StoppedGuest};
use iced_x86::code_asm::{ptr, rax, rsp};
use vmm::Ending;

const BREAKPOINT: u64 = 3;
/// IF of RFLAGS.
const INTERRUPTS: u64 = 1 << 9;
/// WP of CR0.
const WRITE_PROTECT: i32 = 1 << 16;

/// Returns true if this KVM emulates kernel-mode code.
fn emulates() -> bool {
    let int3 = vmm_doctor::examine().guest.and_then(|guest| guest.int3);
    int3.is_some_and(|int3| int3.shape == vmm_doctor::Int3Shape::InternalError)
}

fn with_exits(tiny: &Tiny) {
    tiny.vm.stopped(catch_int3s);
}

#[test]
fn an_int3_behind_sti_comes_to_its_handler_with_no_interrupt_held_back() {
    let name = "an_int3_behind_sti_comes_to_its_handler_with_no_interrupt_held_back";
    let Some(_report) = on_kvm(name) else {
        return;
    };
    // An interrupt gate, which clears IF, and a trap gate, which leaves it.
    for (kind, flag) in [(0x8e, 0), (0x8f, INTERRUPTS)] {
        let tiny = guest(1, |a| {
            a.lidt(ptr(IDT_REGISTER))?;
            a.sti()?;
            a.int3()?;
            a.cli()?;
            power_off(a)
        });
        tiny.map_arena();
        // The handler's own int3 shows what it begins with.
        let handler = tiny.slot(0, |a| {
            a.int3()?;
            a.iretq()
        });
        tiny.gates_of(kind, &[(BREAKPOINT, handler)]);
        with_exits(&tiny);
        let (mut held_back, mut own) = (None, 0);
        tiny.run(move |hit| {
            let flags = hit.vcpu.registers().rflags;
            if hit.rip() != handler {
                held_back = Some(hit.vcpu.interrupt_shadow().unwrap());
                own = hit.rip();
                assert_eq!(flags & INTERRUPTS, INTERRUPTS);
                return Action::Reinject;
            }
            assert_eq!(held_back, Some(true), "by the sti");
            assert!(!hit.vcpu.interrupt_shadow().unwrap());
            assert_eq!(flags & INTERRUPTS, flag, "gate {kind:#x}");
            assert_eq!(hit.stack(0), own + 1);
            assert_eq!(hit.stack(1), CODE_SELECTOR);
            assert_eq!(hit.stack(2) & INTERRUPTS, INTERRUPTS);
            hit.go_to(handler + 1);
            Action::Resume
        });
        assert_eq!(tiny.vm.exits().breakpoint, 2);
    }
}

#[test]
fn an_int3_with_its_stack_in_read_only_memory_ends_as_on_a_processor() {
    let name = "an_int3_with_its_stack_in_read_only_memory_ends_as_on_a_processor";
    let Some(report) = on_kvm(name) else {
        return;
    };
    if emulates() {
        report.skip("this KVM emulates the kernel, and pushes wherever RSP leads".into());
        return;
    }
    let tiny = guest(1, |a| {
        a.lidt(ptr(IDT_REGISTER))?;
        a.mov(rax, iced_x86::code_asm::cr0)?;
        a.or(rax, WRITE_PROTECT)?;
        a.mov(iced_x86::code_asm::cr0, rax)?;
        a.mov(rsp, ptr(IDT_REGISTER + 0x10))?;
        a.int3()?;
        power_off(a)
    });
    tiny.map_arena();
    tiny.protect_arena();
    let handler = tiny.slot(0, power_off);
    tiny.gates(&[(BREAKPOINT, handler)]);
    let stack = tiny.vm.arena().code.start.0 + 0x1_0000;
    tiny.vm
        .stopped(|g| crate::tiny::put(g, IDT_REGISTER + 0x10, stack));
    with_exits(&tiny);
    tiny.start(|_| Action::Reinject);
    // The push faults, and so do those of the exceptions that follow from it.
    assert_eq!(tiny.vm.wait(), Ending::TripleFault);
    let below = tiny.vm.stopped(|g| {
        let mut bytes = [0; 64];
        let at = GuestPhysAddr(stack - 64);
        g.memory().read(at, &mut bytes).unwrap();
        bytes
    });
    assert_eq!(below, [0; 64]);
}
