//! A debugger: its breakpoints, and single instructions for it.

use std::sync::Arc;

use guest_state::testing::TestVcpu;
use guest_state::x86_64::INT3;
use guest_state::{Action, GuestPhysAddr, StepEnd, Trap, TrapHandler, VcpuId};
use parking_lot::Mutex;

use super::fixture::*;
use crate::engine::{Debugger, DebuggerError, Stop, StopReason};

/// Offsets of `plain`'s `push`, of the instruction behind it, and of `stepped`'s `lock incl`.
const PUSH: u64 = 9;
const AFTER: u64 = 10;
const LOCKED: u64 = 0x280;
const LOCKED_LEN: u64 = 7;

#[derive(Default)]
struct Told(Mutex<Vec<Stop>>);

impl Debugger for Told {
    fn stopped(&self, stop: Stop) {
        self.0.lock().push(stop);
    }
}

impl Told {
    fn attach(f: &Fixture) -> Arc<Self> {
        let told = Arc::new(Self::default());
        f.engine.attach_debugger(told.clone()).unwrap();
        told
    }

    /// Returns the reasons since the last call.
    fn take(&self) -> Vec<StopReason> {
        let stops = std::mem::take(&mut *self.0.lock());
        stops.into_iter().map(|stop| stop.reason).collect()
    }
}

fn step(f: &Fixture, vcpu: &mut TestVcpu) -> Action {
    vcpu.pauses_guest = false;
    let guest = f.guest_with(vcpu);
    f.engine.step_for_debugger(&guest, vcpu.id).unwrap();
    f.engine.trap(vcpu, &*f.memory, Trap::StepWanted)
}

#[test]
fn a_vcpu_stays_in_front_of_a_breakpoint_until_it_is_removed() {
    let f = Fixture::new();
    let told = Told::attach(&f);
    let id = f.probe("plain").id;
    f.engine.set_debuggers(id, true);
    let mut vcpu = vcpu_at(PUSH);
    let before = vcpu.registers;
    for hits in 1..3 {
        assert_eq!(f.trap(&mut vcpu), Action::Resume);
        assert_eq!((vcpu.registers, vcpu.pauses_guest), (before, true));
        assert_eq!(told.take(), [StopReason::Breakpoint(id)]);
        assert_eq!(f.hit_count(id), hits);
    }
    assert!(f.events().is_empty(), "it is no event");
    f.unregister(&[id]);
    vcpu.pauses_guest = false;
    assert_eq!(f.trap(&mut vcpu), Action::Resume, "the int3 has gone");
    assert_eq!((vcpu.registers, vcpu.pauses_guest), (before, false));
}

#[test]
fn probes_of_others_and_of_a_debugger_that_has_gone_stop_nobody() {
    let f = Fixture::new();
    let told = Told::attach(&f);
    let id = f.probe("plain").id;
    let mut vcpu = vcpu_at(PUSH);
    vcpu.registers.rsp = STACK;
    f.trap(&mut vcpu);
    assert_eq!(vcpu.registers.rip, TEXT + AFTER);
    f.engine.set_debuggers(id, true);
    f.engine.detach_debugger();
    let mut vcpu = vcpu_at(PUSH);
    vcpu.registers.rsp = STACK;
    f.trap(&mut vcpu);
    assert_eq!(vcpu.registers.rip, TEXT + AFTER);
    assert!(!vcpu.pauses_guest && told.take().is_empty());
}

#[test]
fn a_step_executes_the_instruction_under_probes_and_counts_their_hits() {
    let f = Fixture::new();
    let told = Told::attach(&f);
    let own = f.probe("plain").id;
    let other = f.probe("other=plain").id;
    f.engine.set_debuggers(own, true);
    let mut vcpu = vcpu_at(PUSH);
    vcpu.registers.rsp = STACK;
    assert_eq!(step(&f, &mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + AFTER);
    assert!(vcpu.pauses_guest);
    assert_eq!(told.take(), [StopReason::Stepped]);
    assert_eq!(f.hit_count(other), 1);
    // The next instruction has no probe, and is emulated all the same.
    assert_eq!(step(&f, &mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + AFTER + 3);
    assert_eq!(told.take(), [StopReason::Stepped]);
}

#[test]
fn what_can_not_be_emulated_is_stepped_by_the_monitor() {
    let f = Fixture::new();
    let told = Told::attach(&f);
    let mut vcpu = vcpu_at(LOCKED);
    let Action::Step(asked) = step(&f, &mut vcpu) else {
        panic!("it isn't stepped");
    };
    assert!(!asked.alone, "nobody else runs anyway");
    assert!(!vcpu.pauses_guest && told.take().is_empty());
    vcpu.registers.rip += LOCKED_LEN;
    let ended = Trap::Step(StepEnd::Done);
    assert_eq!(f.engine.trap(&mut vcpu, &*f.memory, ended), Action::Resume);
    assert!(vcpu.pauses_guest);
    assert_eq!(told.take(), [StopReason::Stepped]);
}

#[test]
fn a_step_that_nobody_wants_any_more_leaves_the_guest_paused() {
    let f = Fixture::new();
    let told = Told::attach(&f);
    for gone in [false, true] {
        let mut vcpu = vcpu_at(AFTER);
        let guest = f.guest_with(&vcpu);
        f.engine.step_for_debugger(&guest, vcpu.id).unwrap();
        match gone {
            true => f.engine.detach_debugger(),
            false => f.engine.step_no_more(),
        }
        let before = vcpu.registers;
        let wanted = Trap::StepWanted;
        let action = f.engine.trap(&mut vcpu, &*f.memory, wanted);
        assert_eq!((action, vcpu.registers), (Action::Resume, before));
        assert!(vcpu.pauses_guest && told.take().is_empty());
    }
}

#[test]
fn a_step_is_one_vcpu_s() {
    let f = Fixture::new();
    let told = Told::attach(&f);
    let id = f.probe("plain").id;
    f.engine.set_debuggers(id, true);
    let mut vcpu = vcpu_at(LOCKED);
    assert!(matches!(step(&f, &mut vcpu), Action::Step(_)));
    let mut other = vcpu_at(PUSH);
    other.id = VcpuId(1);
    assert_eq!(f.trap(&mut other), Action::Resume);
    assert_eq!(told.take(), [StopReason::Breakpoint(id)]);
}

#[test]
fn a_guest_has_one_debugger_at_a_time() {
    let f = Fixture::new();
    let _told = Told::attach(&f);
    let second = f.engine.attach_debugger(Arc::new(Told::default()));
    assert_eq!(second, Err(DebuggerError::Attached));
    f.engine.detach_debugger();
    Told::attach(&f);
}

#[test]
fn memory_is_read_without_breakpoints_wherever_the_read_begins() {
    let f = Fixture::new();
    let at = PHYS + PUSH;
    let original = f.bytes_at(at, 1)[0];
    f.probe("plain");
    for before in [0, 1, 20] {
        let mut bytes = f.bytes_at(at - before, 32);
        assert_eq!(bytes[before as usize], INT3);
        f.engine
            .unmask_physical(GuestPhysAddr(at - before), &mut bytes);
        assert_eq!(bytes[before as usize], original);
    }
    let mut bytes = f.bytes_at(at + 1, 8);
    let behind = bytes.clone();
    f.engine.unmask_physical(GuestPhysAddr(at + 1), &mut bytes);
    assert_eq!(bytes, behind);
}
