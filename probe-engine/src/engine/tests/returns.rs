//! Return probes.

use guest_state::testing::TestVcpu;
use guest_state::{Action, Tsc, VcpuId};

use super::fixture::{Fixture, STACK, TEXT, spec, vcpu_at};
use super::under_way;
use crate::event::Detail;
use crate::probe::{ProbeId, ProbeInfo, ProbeKind};

/// Offsets of `plain`'s and `traced`'s first instructions.
pub(super) const PLAIN: u64 = 9;
pub(super) const TRACED: u64 = 0x45;
/// Where the made-up callers continue.
pub(super) const CALLER: u64 = TEXT + 0x700;

/// The address that a followed call returns to.
pub(super) fn trampoline(f: &Fixture) -> u64 {
    f.engine.returns.trampoline().unwrap().0
}

pub(super) fn follow(f: &Fixture, place: &str, maxactive: u32) -> ProbeInfo {
    let mut spec = spec(place);
    spec.kind = ProbeKind::Return {
        maxactive: Some(maxactive),
    };
    f.engine.register(&f.guest(), &[spec]).unwrap().remove(0)
}

/// Makes a vCPU enter a function with its return address at `rsp`.
fn enter(f: &Fixture, offset: u64, rsp: u64) {
    let mut vcpu = vcpu_at(offset);
    (vcpu.registers.rsp, vcpu.tsc) = (rsp, Tsc(5));
    f.trap(&mut vcpu);
}

fn call(f: &Fixture, offset: u64, rsp: u64) {
    f.set_word(rsp, CALLER);
    enter(f, offset, rsp);
}

/// Makes the function whose return address is at `rsp` execute `ret`.
pub(super) fn leave(f: &Fixture, rsp: u64) -> (Action, TestVcpu) {
    let mut vcpu = vcpu_at(0);
    vcpu.registers.rip = f.word(rsp);
    (vcpu.registers.rsp, vcpu.registers.rax) = (rsp + 8, 42);
    (vcpu.id, vcpu.tsc) = (VcpuId(1), Tsc(9));
    (f.trap(&mut vcpu), vcpu)
}

pub(super) fn returned(f: &Fixture) -> Vec<ProbeId> {
    let is_return = |detail: &Detail| matches!(detail, Detail::Return { .. });
    let details = f.details().into_iter();
    details
        .filter(|(_, it)| is_return(it))
        .map(|(id, _)| id)
        .collect()
}

#[test]
fn a_return_is_reported_with_its_caller_and_the_registers_at_entry() {
    let f = Fixture::with_arena();
    let probe = f.probe("plain%return");
    assert_eq!(probe.name, "plain+0x9%return");
    assert_eq!(
        probe.kind,
        ProbeKind::Return {
            maxactive: Some(10)
        }
    );
    call(&f, PLAIN, STACK);
    assert_eq!(f.word(STACK), trampoline(&f));
    assert!(f.events().is_empty());
    let (action, vcpu) = leave(&f, STACK);
    assert_eq!((action, vcpu.registers.rip), (Action::Resume, CALLER));
    let event = f.events().remove(0);
    assert_eq!(
        (event.probe, event.vcpu, event.tsc),
        (probe.id, VcpuId(1), Tsc(9))
    );
    assert_eq!(event.registers, vcpu.registers);
    let entry = vcpu_at(PLAIN).registers;
    let (caller, entry_tsc) = (CALLER.into(), Tsc(5));
    assert_eq!(
        event.detail,
        Detail::Return {
            caller,
            entry_tsc,
            entry: Box::new(entry),
            tail_call: false,
        }
    );
    let info = f.info(probe.id);
    assert_eq!((info.hits, info.missed, info.exits), (1, 0, 2));
    assert!(!f.engine.returns.any());
}

#[test]
fn nested_and_recursive_calls_return_each_to_its_own_caller() {
    let f = Fixture::with_arena();
    let (outer, inner) = (f.probe("plain%return").id, f.probe("traced%return").id);
    call(&f, PLAIN, STACK);
    call(&f, TRACED, STACK - 0x40);
    call(&f, PLAIN, STACK - 0x80);
    for rsp in [STACK - 0x80, STACK - 0x40, STACK] {
        assert_eq!(leave(&f, rsp).1.registers.rip, CALLER);
    }
    assert_eq!(returned(&f), [outer, inner, outer]);
}

#[test]
fn probes_on_one_function_share_its_return() {
    let f = Fixture::with_arena();
    let (one, two) = (f.probe("plain%return").id, f.probe("two=plain%return").id);
    let entry = f.probe("entry=plain").id;
    call(&f, PLAIN, STACK);
    leave(&f, STACK);
    assert_eq!(returned(&f), [two, one]);
    assert_eq!([one, two, entry].map(|id| f.hit_count(id)), [1; 3]);
}

#[test]
fn a_tail_call_returns_for_both_functions_the_inner_one_first() {
    let f = Fixture::with_arena();
    let (outer, inner) = (f.probe("plain%return").id, f.probe("traced%return").id);
    call(&f, PLAIN, STACK);
    enter(&f, TRACED, STACK);
    let (_, vcpu) = leave(&f, STACK);
    assert_eq!(
        (returned(&f), vcpu.registers.rip),
        (vec![inner, outer], CALLER)
    );
}

#[test]
fn calls_beyond_maxactive_are_missed() {
    let f = Fixture::with_arena();
    let id = follow(&f, "plain", 2).id;
    for i in 0..3 {
        call(&f, PLAIN, STACK + i * 0x40);
    }
    assert_eq!(f.word(STACK + 0x80), CALLER);
    leave(&f, STACK);
    leave(&f, STACK + 0x40);
    call(&f, PLAIN, STACK);
    leave(&f, STACK);
    let info = f.info(id);
    assert_eq!((info.hits, info.missed), (3, 1));
    let mut spec = spec("traced");
    spec.kind = ProbeKind::Return {
        maxactive: Some(4097),
    };
    let error = f.engine.register(&f.guest(), &[spec]).unwrap_err();
    assert!(error.to_string().contains("at most 4096"), "{error}");
}

#[test]
fn an_instruction_that_faults_and_is_repeated_is_one_call() {
    let f = Fixture::with_arena();
    let id = f.probe("plain%return").id;
    f.set_word(STACK, CALLER);
    // One page table for the first 2 MiB, in which nothing below the stack's page can be written.
    f.set_word(0x1000, 0x2063);
    f.set_word(0x2000, 0x3063);
    f.set_word(0x3000, 0x4063);
    f.set_word(0x4000 + 8 * 8, 0x8063);
    let mut vcpu = vcpu_at(PLAIN);
    vcpu.control.cr0 = 1 << 31 | 1 << 16;
    (vcpu.control.cr3, vcpu.control.efer) = (0x1000, 1 << 10);
    assert!(matches!(f.trap(&mut vcpu), Action::PageFault { .. }));
    assert_eq!(f.word(STACK), CALLER, "the fault's handler sees the caller");
    f.set_word(0x4000 + 7 * 8, 0x7063);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    leave(&f, STACK);
    assert_eq!(returned(&f), [id]);
}

#[test]
fn removing_the_probe_puts_return_addresses_back() {
    let f = Fixture::with_arena();
    let (id, other) = (f.probe("plain%return").id, f.probe("traced%return").id);
    call(&f, PLAIN, STACK);
    call(&f, TRACED, STACK - 0x40);
    f.unregister(&[id]);
    assert_eq!(
        (f.word(STACK), f.word(STACK - 0x40)),
        (CALLER, trampoline(&f))
    );
    leave(&f, STACK - 0x40);
    assert_eq!(returned(&f), [other]);
    assert!(f.engine.debugging().breakpoints);
    f.unregister(&[other]);
    assert!(!f.engine.debugging().breakpoints);
}

#[test]
fn removing_one_of_two_probes_leaves_the_others_return() {
    let f = Fixture::with_arena();
    let (one, two) = (f.probe("plain%return").id, f.probe("two=plain%return").id);
    call(&f, PLAIN, STACK);
    f.unregister(&[one]);
    assert_eq!(f.word(STACK), trampoline(&f));
    leave(&f, STACK);
    assert_eq!(returned(&f), [two]);
}

#[test]
fn removing_the_probe_moves_a_vcpu_that_has_just_returned() {
    let f = Fixture::with_arena();
    let id = f.probe("plain%return").id;
    call(&f, PLAIN, STACK);
    let mut vcpu = vcpu_at(0);
    (vcpu.registers.rip, vcpu.registers.rsp) = (trampoline(&f), STACK + 8);
    let guest = f.guest_with(&vcpu);
    f.engine.unregister(&guest, &[id]).unwrap();
    assert_eq!(guest.vcpus.lock().unwrap()[0].registers.rip, CALLER);
}

#[test]
fn removing_the_probe_mends_the_frame_of_an_interrupt_right_after_the_return() {
    for rsp in [STACK, STACK + 8] {
        let f = Fixture::with_arena();
        let id = f.probe("plain%return").id;
        call(&f, PLAIN, rsp);
        // SS, RSP, RFLAGS, CS, RIP; the handler has overwritten the return address.
        let mut at = (rsp + 8) & !15;
        for word in [0x18, rsp + 8, 2, 0x10, trampoline(&f)] {
            at -= 8;
            f.set_word(at, word);
        }
        f.unregister(&[id]);
        assert_eq!(f.word(at), CALLER);
    }
}

#[test]
fn a_return_address_of_a_removed_probe_stays_while_a_tool_of_the_guest_s_may_be_taking_it() {
    for (below, word) in under_way::TAKING {
        let f = Fixture::with_arena();
        under_way::load_traced_module(&f);
        let id = f.probe("plain%return").id;
        call(&f, PLAIN, STACK);
        f.set_word(STACK - below, *word);
        f.unregister(&[id]);
        assert_eq!(f.word(STACK), trampoline(&f), "{below} {word:#x}");
        // The guest's tool restores our address.
        let (action, vcpu) = leave(&f, STACK);
        assert_eq!((action, vcpu.registers.rip), (Action::Resume, CALLER));
        assert!(returned(&f).is_empty());
    }
}

#[test]
fn a_disabled_return_probe_follows_no_call_and_reports_none() {
    let f = Fixture::with_arena();
    let id = f.probe("plain%return").id;
    call(&f, PLAIN, STACK);
    f.enable(id, false);
    assert_eq!(f.byte(PLAIN), 0x55);
    let (_, vcpu) = leave(&f, STACK);
    assert_eq!(vcpu.registers.rip, CALLER);
    assert!(f.events().is_empty());
    assert_eq!(f.info(id).hits, 0);
}

#[test]
fn a_jump_to_the_trampoline_by_the_guest_itself_is_given_back() {
    let f = Fixture::with_arena();
    f.probe("plain%return");
    let mut vcpu = vcpu_at(0);
    vcpu.registers.rip = trampoline(&f);
    assert_eq!(f.trap(&mut vcpu), Action::Reinject);
}

#[test]
fn return_probes_need_an_entry_and_executable_memory() {
    let f = Fixture::with_arena();
    let message = f.refusal("plain+0xa%return").to_string();
    assert!(message.contains("not the entry of plain"), "{message}");
    assert_eq!(f.probe("0xffffffff81000000%return").offset, PLAIN);
    let message = Fixture::new().refusal("plain%return").to_string();
    assert!(message.contains("executable memory"), "{message}");
}

#[test]
fn a_return_address_in_memory_that_the_guest_could_not_write_is_left_as_it_is() {
    let f = Fixture::with_arena();
    let id = f.probe("plain%return").id;
    f.memory.protect(STACK..STACK + 8);
    call(&f, PLAIN, STACK);
    assert_eq!(f.word(STACK), CALLER);
    assert_eq!((f.info(id).hits, f.info(id).missed), (0, 1));
    assert!(!f.engine.returns.any());
}
