//! Return probes beside the guest's own tools, which also replace return addresses, and calls of tasks that end.

use guest_kernel::Kernel;
use guest_state::Action;
use guest_state::testing::TestVcpu;

use super::fixture::{Fixture, STACK, TEXT, spec, vcpu_at};
use super::returns::{CALLER, PLAIN, TRACED, follow, leave, returned, trampoline};
use crate::probe::{ProbeInfo, ProbeKind};

/// GS base, and the offset of the current task's address from it.
const GS: u64 = 0xc000;
const CURRENT: i32 = 0x10;
/// The addresses of tasks, and how far apart they are.
const TASKS: u64 = 0xd000;
const TASK: u64 = 0x100;
/// Offsets of a task's members.
const STATE: u32 = 0;
const ON_CPU: u32 = 8;
const CANARY: u32 = 16;
/// `TASK_DEAD`
pub(super) const DEAD: u64 = 0x80;
/// Where a tool of the guest's makes its calls return to.
const TOOL: u64 = TEXT + 0x780;
/// On a stack that the processor switches to by itself.
pub(super) const ON_NMI_STACK: u64 = 0xffff_fe00_0000_3f00;

/// Gives the engine what it needs to know of tasks.
pub(super) fn know(kernel: &mut Kernel) {
    let variables = &mut kernel.variables;
    variables.current_task = Some(CURRENT);
    variables.stack_canary = Some(CANARY);
    variables.state = Some((STATE, 4));
    variables.on_cpu = Some(ON_CPU);
}

/// The address of a task, and its secret.
pub(super) fn task(number: u64) -> (u64, u64) {
    (TASKS + number * TASK, 0x5eed_0000 + number)
}

/// Makes a task run.
pub(super) fn begin(f: &Fixture, number: u64) {
    let (at, canary) = task(number);
    f.set_word(at + u64::from(STATE), 0);
    f.set_word(at + u64::from(ON_CPU), 1);
    f.set_word(at + u64::from(CANARY), canary);
}

/// Makes a task end: it has executed its last instruction, and may still be on its CPU.
pub(super) fn end(f: &Fixture, number: u64, on_cpu: u64) {
    let (at, _) = task(number);
    f.set_word(at + u64::from(STATE), DEAD);
    f.set_word(at + u64::from(ON_CPU), on_cpu);
}

/// Makes a vCPU execute another task than before, at the same address.
pub(super) fn next(f: &Fixture, vcpu: &mut TestVcpu) {
    let (at, _) = task(0);
    let canary = f.word(at + u64::from(CANARY)) + 1;
    f.set_word(at + u64::from(CANARY), canary);
    f.set_word(GS + CURRENT as u64, at);
    vcpu.control.gs_base = GS;
}

/// Makes a task call a function with its return address at `rsp`.
fn call(f: &Fixture, number: u64, offset: u64, rsp: u64, caller: u64) {
    begin(f, number);
    f.set_word(GS + CURRENT as u64, task(number).0);
    f.set_word(rsp, caller);
    let mut vcpu = vcpu_at(offset);
    vcpu.registers.rsp = rsp;
    vcpu.control.gs_base = GS;
    f.trap(&mut vcpu);
}

fn on_nmi_stack() -> TestVcpu {
    let mut vcpu = vcpu_at(0);
    vcpu.registers.rsp = ON_NMI_STACK;
    vcpu
}

#[test]
fn a_call_returns_to_the_tool_that_took_the_address_of_the_one_before_and_that_to_us() {
    let f = Fixture::with_arena_and(know);
    let (outer, inner) = (f.probe("plain%return").id, f.probe("traced%return").id);
    call(&f, 1, PLAIN, STACK, CALLER);
    call(&f, 1, TRACED, STACK, TOOL);
    let (action, vcpu) = leave(&f, STACK);
    assert_eq!((action, vcpu.registers.rip), (Action::Resume, TOOL));
    // The tool restores the address that it has found.
    f.set_word(STACK, trampoline(&f));
    let (action, vcpu) = leave(&f, STACK);
    assert_eq!((action, vcpu.registers.rip), (Action::Resume, CALLER));
    assert_eq!(returned(&f), [inner, outer]);
    assert!(!f.engine.debugging().breakpoints || f.engine.table().has_int3());
    for id in [outer, inner] {
        assert_eq!((f.info(id).hits, f.info(id).missed), (1, 0));
    }
}

#[test]
fn a_call_whose_address_a_tool_has_taken_is_led_on_after_its_probe_has_gone() {
    let f = Fixture::with_arena_and(know);
    let (outer, inner) = (f.probe("plain%return").id, f.probe("traced%return").id);
    call(&f, 1, PLAIN, STACK, CALLER);
    call(&f, 1, TRACED, STACK, TOOL);
    f.unregister(&[outer, inner]);
    assert_eq!(f.word(STACK), TOOL, "nobody needs the inner one any more");
    assert!(
        f.engine.debugging().breakpoints,
        "the tool has the outer one"
    );
    f.set_word(STACK, trampoline(&f));
    assert_eq!(leave(&f, STACK).1.registers.rip, CALLER);
    assert!(returned(&f).is_empty());
    assert!(!f.engine.debugging().breakpoints);
}

#[test]
fn calls_of_tasks_that_have_ended_make_room_for_others() {
    let f = Fixture::with_arena_and(know);
    let id = follow(&f, "plain", 4).id;
    for number in 0..4 {
        call(&f, number, PLAIN, STACK + number * 0x40, CALLER);
        end(&f, number, 1);
    }
    let fifth = STACK + 0x100;
    call(&f, 4, PLAIN, fifth, CALLER);
    assert_eq!(f.info(id).missed, 1, "they are still on their CPUs");
    // One task has left its CPU; the memory of another one is a new task's now.
    end(&f, 2, 0);
    f.set_word(task(3).0 + u64::from(CANARY), 7);
    for place in [0, 0x40] {
        call(&f, 4, PLAIN, fifth + place, CALLER);
        assert_eq!(f.word(fifth + place), trampoline(&f));
    }
    assert_eq!(counts(&f.info(id)), (0, 1, 2));
    call(&f, 4, PLAIN, fifth + 0x80, CALLER);
    assert_eq!(counts(&f.info(id)), (0, 2, 2), "the others are under way");
    leave(&f, fifth);
    assert_eq!(counts(&f.info(id)), (1, 2, 2));
}

/// Hits, missed hits, and calls that never return.
fn counts(info: &ProbeInfo) -> (u64, u64, u64) {
    (info.hits, info.missed, info.ended)
}

#[test]
fn a_call_that_never_returns_is_counted_by_itself_when_it_is_asked_for_and_at_a_removal() {
    let f = Fixture::with_arena_and(know);
    f.start();
    let mut at_rets = spec("rets=plain");
    at_rets.kind = ProbeKind::Exits { maxactive: Some(3) };
    let at_rets = f.engine.register(&f.guest(), &[at_rets]).unwrap()[0].id;
    let ids = [follow(&f, "plain", 3).id, at_rets];
    // One call returns, one never will, one is under way, and one is beyond the limit.
    for number in 0..4 {
        call(&f, number, PLAIN, STACK + number * 0x40, CALLER);
    }
    let (at, _) = task(0);
    f.set_word(GS + CURRENT as u64, at);
    let mut vcpu = vcpu_at(PLAIN + 5);
    vcpu.control.gs_base = GS;
    f.trap(&mut vcpu);
    assert_eq!(vcpu.registers.rip, trampoline(&f));
    f.trap(&mut vcpu);
    assert!(!f.engine.any_call_has_ended(&*f.memory));
    end(&f, 1, 0);
    assert!(f.engine.any_call_has_ended(&*f.memory));
    for _ in 0..2 {
        f.engine.count_ended(&f.guest());
        assert!(!f.engine.any_call_has_ended(&*f.memory));
        for id in ids {
            assert_eq!(counts(&f.info(id)), (1, 1, 1));
        }
    }
    // One more call whose end hasn't been counted yet, and one that would still return.
    call(&f, 4, PLAIN, STACK + 0x100, CALLER);
    end(&f, 4, 0);
    for removed in f.engine.unregister(&f.guest(), &ids).unwrap() {
        assert_eq!(counts(&removed), (1, 2, 2));
    }
}

#[test]
fn calls_under_way_when_the_guest_ends_never_return() {
    let f = Fixture::with_arena();
    let id = follow(&f, "plain", 4).id;
    call(&f, 1, PLAIN, STACK, CALLER);
    for _ in 0..2 {
        f.engine.drain_ended(&*f.memory);
        assert_eq!(counts(&f.info(id)), (0, 0, 1));
    }
    assert!(f.engine.followed_calls(&f.guest()).unwrap().is_empty());
}

#[test]
fn a_call_whose_task_has_ended_makes_room_when_its_stack_is_another_one_s() {
    let f = Fixture::with_arena_and(know);
    let id = follow(&f, "plain", 1).id;
    call(&f, 1, PLAIN, STACK, CALLER);
    call(&f, 2, PLAIN, STACK, CALLER);
    leave(&f, STACK);
    assert_eq!(counts(&f.info(id)), (1, 0, 1));
    assert!(!f.engine.returns.any());
}

#[test]
fn calls_of_tasks_that_have_ended_are_forgotten_when_probes_come_and_go() {
    let f = Fixture::with_arena_and(know);
    let id = follow(&f, "plain", 4).id;
    call(&f, 1, PLAIN, STACK, CALLER);
    f.set_word(STACK, 7);
    let removed = f.engine.unregister(&f.guest(), &[id]).unwrap();
    assert_eq!(counts(&removed[0]), (0, 1, 0));
    assert!(f.engine.debugging().breakpoints, "it may yet return");
    end(&f, 1, 0);
    let id = f.probe("traced%return").id;
    f.unregister(&[id]);
    assert!(!f.engine.debugging().breakpoints);
    assert_eq!(f.word(STACK), 7);
}

#[test]
fn while_an_nmi_may_be_at_the_trampoline_return_addresses_stay_and_are_put_back_later() {
    let f = Fixture::with_arena_and(know);
    f.start();
    let id = f.probe("plain%return").id;
    call(&f, 1, PLAIN, STACK, CALLER);
    call(&f, 1, PLAIN, STACK + 0x40, CALLER);
    let guest = f.guest_with(&on_nmi_stack());
    f.engine.unregister(&guest, &[id]).unwrap();
    assert_eq!(f.word(STACK), trampoline(&f));
    // The code that the NMI has interrupted goes on.
    assert_eq!(leave(&f, STACK).1.registers.rip, CALLER);
    assert!(f.engine.has_waiting());
    assert_eq!(f.optimize(), 0);
    assert_eq!(f.word(STACK + 0x40), CALLER);
    assert!(!f.engine.debugging().breakpoints);
    assert!(returned(&f).is_empty());
}

#[test]
fn calls_that_are_followed_are_listed_with_their_tasks_until_those_have_ended() {
    const COMM: u32 = 24;
    const PID: u32 = 40;
    let f = Fixture::with_arena_and(|kernel| {
        know(kernel);
        kernel.variables.pid = Some(PID);
        kernel.variables.comm = Some(COMM);
    });
    let (id, inner) = (f.probe("plain%return").id, f.probe("traced%return").id);
    call(&f, 1, PLAIN, STACK, CALLER);
    call(&f, 1, TRACED, STACK, TOOL);
    call(&f, 2, PLAIN, STACK + 0x40, CALLER);
    let (at, _) = task(1);
    f.set_word(at + u64::from(PID), 77);
    f.set_word(at + u64::from(COMM), u64::from_le_bytes(*b"cat\xff\0abc"));
    end(&f, 2, 0);
    let calls = f.engine.followed_calls(&f.guest()).unwrap();
    let told: Vec<_> = calls
        .iter()
        .map(|call| (&*call.probes, call.caller.0))
        .collect();
    assert_eq!(told, [(&[id][..], CALLER), (&[inner], TOOL)]);
    for call in &calls {
        assert_eq!((call.task, call.pid), (Some(at), Some(77)));
        assert_eq!(call.comm.as_deref(), Some("cat\u{fffd}"));
    }
    f.unregister(&[id, inner]);
    let calls = f.engine.followed_calls(&f.guest()).unwrap();
    assert_eq!(calls.len(), 1, "a tool has its return address");
    assert!(calls[0].probes.is_empty());
}
