//! Instructions that are stepped in a copy.

use guest_state::testing::TestVcpu;
use guest_state::{Action, ExceptionHandler, GuestVirtAddr, Step, StepEnd};

use super::fixture::{ALONE, Fixture, STACK, TEXT, vcpu_at};
use crate::arena::SLOT_AREA;
use crate::event::Detail;

const IDT: u64 = 0xc000;
const TF: u64 = 1 << 8;

/// The address of the guest's handler of a vector.
fn handler(vector: u64) -> u64 {
    TEXT + 0x1000 + vector
}

/// A vCPU at `wrmsr` that is to step it, and the address where it does.
fn stepping(f: &Fixture) -> (TestVcpu, u64) {
    let mut vcpu = vcpu_at(0x2c5);
    vcpu.control.idt_base = IDT;
    vcpu.control.idt_limit = 15 * 16 - 1;
    vcpu.control.cr2 = 0x1234;
    for vector in [0, 6, 13, 14] {
        let entry = handler(vector);
        f.set_word(
            IDT + vector * 16,
            entry & 0xffff | (entry & 0xffff_0000) << 32 | 0x8e00 << 32,
        );
        f.set_word(IDT + vector * 16 + 8, entry >> 32);
    }
    let action = f.trap(&mut vcpu);
    let handlers = [14, 13, 6, 0].map(|vector: u8| {
        let entry = GuestVirtAddr(handler(vector.into()));
        Some(ExceptionHandler { vector, entry })
    });
    let step = Step {
        handlers,
        ..Step::default()
    };
    assert_eq!(action, Action::Step(step));
    let copy = vcpu.registers.rip;
    assert!(SLOT_AREA.contains(&copy.into()));
    assert_eq!(f.arena_bytes(copy, 2), [0x0f, 0x30]);
    (vcpu, copy)
}

/// Does what the CPU does for an exception of the instruction at `rip`.
fn raise(f: &Fixture, vcpu: &mut TestVcpu, vector: u64, error_code: Option<u64>, rip: u64) {
    let r = &mut vcpu.registers;
    for word in [0x18, r.rsp, r.rflags | TF, 0x10, rip]
        .into_iter()
        .chain(error_code)
    {
        r.rsp = if word == 0x18 { r.rsp & !15 } else { r.rsp } - 8;
        f.set_word(r.rsp, word);
    }
    r.rip = handler(vector);
}

#[test]
fn a_step_in_the_copy_goes_on_behind_the_original() {
    let f = Fixture::with_arena();
    let id = f.probe("copied+0x5%post").id;
    let (mut vcpu, copy) = stepping(&f);
    assert_eq!(f.byte(0x2c5), 0xcc, "the breakpoint stays");
    vcpu.registers.rip = copy + 2;
    let end = f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done);
    assert_eq!((end, vcpu.registers.rip), (Action::Resume, TEXT + 0x2c7));
    assert_eq!(f.details(), [(id, Detail::Pre), (id, Detail::Post)]);
    assert_eq!(f.events()[1].registers.rip, TEXT + 0x2c7);
    assert_eq!((f.info(id).hits, f.info(id).exits), (1, 2));
}

#[test]
fn an_exception_in_the_copy_looks_to_the_guest_as_one_of_the_original() {
    for (vector, error_code) in [(13, Some(0)), (14, Some(2)), (6, None)] {
        let f = Fixture::with_arena();
        let id = f.probe("copied+0x5%both").id;
        let (mut vcpu, copy) = stepping(&f);
        raise(&f, &mut vcpu, vector, error_code, copy);
        let at_handler = vcpu.registers;
        let end = StepEnd::Exception(vector as u8);
        let end = f.engine.after_step(&*f.memory, &mut vcpu, end);
        assert_eq!((end, vcpu.registers), (Action::Resume, at_handler));
        let frame = at_handler.rsp + if error_code.is_some() { 8 } else { 0 };
        assert_eq!(f.word(frame), TEXT + 0x2c5);
        assert_eq!(f.word(frame + 16), 2, "no trap flag");
        assert_eq!(f.word(frame + 24), STACK);
        let fault = Detail::Fault {
            vector: vector as u8,
            error_code: error_code.map(|code| code as u32),
            address: (vector == 14).then_some(GuestVirtAddr(0x1234)),
        };
        assert_eq!(f.details(), [(id, Detail::Pre), (id, fault)]);
        let seen = f.events()[1].registers;
        assert_eq!((seen.rip, seen.rsp, seen.rflags), (TEXT + 0x2c5, STACK, 2));
    }
}

#[test]
fn an_exception_of_something_else_is_none_of_the_instructions() {
    let f = Fixture::with_arena();
    let id = f.probe("copied+0x5%both").id;
    let (mut vcpu, _) = stepping(&f);
    raise(&f, &mut vcpu, 14, Some(0), TEXT + 0x700);
    let rsp = vcpu.registers.rsp;
    f.engine
        .after_step(&*f.memory, &mut vcpu, StepEnd::Exception(14));
    assert_eq!((f.word(rsp + 8), f.word(rsp + 24)), (TEXT + 0x700, 2));
    assert_eq!(f.details(), [(id, Detail::Pre)]);
}

#[test]
fn a_step_that_went_astray_leaves_all_as_it_is() {
    let f = Fixture::with_arena();
    let id = f.probe("copied+0x5%both").id;
    let (mut vcpu, _) = stepping(&f);
    vcpu.registers.rip = TEXT + 0x700;
    let before = vcpu.registers;
    let end = f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Astray);
    assert_eq!((end, vcpu.registers), (Action::Resume, before));
    assert_eq!(f.details(), [(id, Detail::Pre)]);
    assert_eq!(f.byte(0x2c5), 0xcc);
}

#[test]
fn a_step_whose_probe_is_removed_ends_behind_the_original() {
    let f = Fixture::with_arena();
    let id = f.probe("copied+0x5").id;
    let (mut vcpu, copy) = stepping(&f);
    f.unregister(&[id]);
    vcpu.registers.rip = copy + 2;
    f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done);
    assert_eq!((vcpu.registers.rip, f.byte(0x2c5)), (TEXT + 0x2c7, 0x0f));
}

#[test]
fn without_a_debug_register_for_the_handlers_the_step_is_in_place() {
    let f = Fixture::with_arena();
    f.probe("copied+0x5");
    let watched = ["table/8", "table+0x8/8", "table+0x10/8", "table+0x18/8"];
    f.register(&watched).unwrap();
    assert_eq!(f.trap(&mut vcpu_at(0x2c5)), ALONE);
}

#[test]
fn a_step_that_leads_to_another_one_leaves_its_breakpoint_planted() {
    let f = Fixture::new();
    f.register(&["copied+0x5", "traced+0x8"]).unwrap();
    let mut vcpu = vcpu_at(0x2c5);
    assert_eq!(f.trap(&mut vcpu), ALONE);
    assert!(f.engine.lift_for_step(&*f.memory, &mut vcpu));
    // Its exception is handled at the place of the other probe.
    vcpu.registers.rip = TEXT + 0x48;
    assert_eq!(f.trap(&mut vcpu), ALONE);
    assert_eq!(f.byte(0x2c5), 0xcc);
    assert!(f.engine.lift_for_step(&*f.memory, &mut vcpu));
    vcpu.registers.rip += 3;
    f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done);
    assert_eq!((f.byte(0x2c5), f.byte(0x48)), (0xcc, 0xcc));
}

#[test]
fn a_step_in_the_copy_that_ends_elsewhere_has_not_done_its_instruction() {
    let f = Fixture::with_arena();
    let id = f.probe("copied+0x5%both").id;
    let (mut vcpu, _) = stepping(&f);
    vcpu.registers.rip = handler(6) + 1;
    f.engine.after_step(&*f.memory, &mut vcpu, StepEnd::Done);
    assert_eq!(vcpu.registers.rip, handler(6) + 1);
    assert_eq!(f.details(), [(id, Detail::Pre)]);
}

#[test]
fn a_handlers_frame_that_the_guest_could_not_write_is_left_as_it_is() {
    let f = Fixture::with_arena();
    f.probe("copied+0x5%both");
    let (mut vcpu, copy) = stepping(&f);
    raise(&f, &mut vcpu, 13, Some(0), copy);
    let rsp = vcpu.registers.rsp;
    f.memory.protect(rsp..STACK);
    f.engine
        .after_step(&*f.memory, &mut vcpu, StepEnd::Exception(13));
    assert_eq!(f.word(rsp + 8), copy);
    assert_eq!(f.word(rsp + 24) & TF, TF);
}
