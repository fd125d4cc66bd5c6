//! What probes do to the guest, and what clients do that are asked at each hit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_state::testing::TestVcpu;
use guest_state::x86_64::flags::{CF, IF, ZF};
use guest_state::{Action, GuestVirtAddr, Trap, TrapHandler, VcpuId};
use parking_lot::Mutex;

use super::fixture::{Fixture, PHYS, STACK, TEXT, spec, vcpu_at};
use crate::action::{ActionRefusal, HitAction, Pointer, Target};
use crate::engine::{AttendError, Attendant, HeldHit};
use crate::error::RegisterError;
use crate::fetch::Fetches;
use crate::probe::{Capture, NoJump, Optimization, ProbeId, ProbeInfo, ProbeSpec, Switch};

/// A function's first instruction in the fixture: `push %rbp`.
const ENTRY: u64 = 9;
const CALLER: u64 = TEXT + 0x140;

fn with(place: &str, actions: &[HitAction]) -> ProbeSpec {
    let mut spec = spec(place);
    spec.options.actions = actions.into();
    spec
}

fn register(f: &Fixture, place: &str, actions: &[HitAction]) -> Result<ProbeInfo, RegisterError> {
    let spec = with(place, actions);
    let mut probes = f.engine.register(&f.guest(), &[spec])?;
    Ok(probes.remove(0))
}

fn set(target: Target, value: u64) -> HitAction {
    HitAction::SetRegister { target, value }
}

fn write(register: Option<u8>, offset: u64, bytes: &[u8]) -> HitAction {
    HitAction::WriteMemory {
        at: Pointer { register, offset },
        bytes: bytes.into(),
    }
}

/// A vCPU at the function's entry, called from [`CALLER`].
fn called(f: &Fixture) -> TestVcpu {
    f.set_word(STACK, CALLER);
    vcpu_at(ENTRY)
}

/// Returns how many actions were done, and how many weren't.
fn counts(f: &Fixture, id: ProbeId) -> (u64, u64) {
    let info = f.info(id);
    (info.actions, info.failed_actions)
}

#[test]
fn the_instruction_sees_a_register_that_is_set_and_the_event_what_it_was() {
    let f = Fixture::new();
    let probe = register(&f, "plain", &[set(Target::General(5), 0x77)]).unwrap();
    let mut vcpu = called(&f);
    vcpu.registers.rbp = 0x1234;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(f.word(STACK - 8), 0x77, "what was pushed");
    assert_eq!(vcpu.registers.rip, TEXT + ENTRY + 1);
    assert_eq!(f.events()[0].registers.rbp, 0x1234);
    assert_eq!(counts(&f, probe.id), (1, 0));
}

#[test]
fn a_function_that_is_overridden_returns_the_value_and_does_nothing() {
    let f = Fixture::with_arena();
    let returning = f.probe("plain%return");
    let probe = register(&f, "other=plain", &[HitAction::Override { value: 42 }]).unwrap();
    let mut vcpu = called(&f);
    let before = vcpu.registers;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    let after = guest_state::Registers {
        rax: 42,
        rip: CALLER,
        rsp: STACK + 8,
        ..before
    };
    assert_eq!(vcpu.registers, after);
    assert_eq!(f.word(STACK), CALLER, "nobody waits for the return");
    assert_eq!(f.word(STACK - 8), 0, "the push was not executed");
    assert_eq!((f.hit_count(probe.id), f.hit_count(returning.id)), (1, 0));
}

#[test]
fn execution_goes_on_at_a_rip_that_is_set() {
    let f = Fixture::new();
    register(&f, "plain", &[set(Target::Rip, TEXT + 0x140)]).unwrap();
    let mut vcpu = called(&f);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(
        (vcpu.registers.rip, vcpu.registers.rsp),
        (TEXT + 0x140, STACK)
    );
}

#[test]
fn no_action_sends_a_vcpu_where_it_can_t_be_or_into_memory_of_ours() {
    let f = Fixture::with_arena();
    let arena = 0xffff_ffff_7fff_0000;
    let probe = register(&f, "plain", &[set(Target::Rip, arena)]).unwrap();
    let mut vcpu = called(&f);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(
        vcpu.registers.rip,
        TEXT + ENTRY + 1,
        "the instruction is executed"
    );
    assert_eq!(counts(&f, probe.id), (0, 1));
    let failure = f.info(probe.id).action_failure;
    assert!(failure.contains("0xffffffff7fff0000"), "{failure}");
}

#[test]
fn of_the_flags_only_those_of_arithmetic_are_set() {
    let f = Fixture::new();
    register(&f, "plain", &[set(Target::Flags, CF)]).unwrap();
    let mut vcpu = called(&f);
    vcpu.registers.rflags = IF | ZF | 2;
    f.trap(&mut vcpu);
    assert_eq!(vcpu.registers.rflags, IF | CF | 2);
}

#[test]
fn memory_is_written_at_an_address_and_where_a_register_points() {
    let f = Fixture::new();
    let actions = [write(None, 0x9000, b"abc"), write(Some(7), 0x10, b"de")];
    let probe = register(&f, "plain", &actions).unwrap();
    let mut vcpu = called(&f);
    vcpu.registers.rdi = 0x9100;
    f.trap(&mut vcpu);
    assert_eq!(f.bytes_at(0x9000, 3), b"abc");
    assert_eq!(f.bytes_at(0x9110, 2), b"de");
    assert_eq!(counts(&f, probe.id), (2, 0));
}

#[test]
fn what_can_t_be_written_is_counted_and_the_guest_goes_on() {
    let f = Fixture::new();
    // In the place of its int3, the instruction could have a jump over it.
    let table = [
        (0x7fff_0000, "no guest memory"),
        (PHYS + ENTRY, "vmprobe itself"),
        (PHYS + ENTRY - 1, "vmprobe itself"),
    ];
    for (at, why) in table {
        let name = format!("p{at}=plain");
        let probe = register(&f, &name, &[write(None, at, b"xy"), HitAction::Pause]).unwrap();
        let mut vcpu = called(&f);
        assert_eq!(f.trap(&mut vcpu), Action::Resume);
        assert_eq!(vcpu.registers.rip, TEXT + ENTRY + 1);
        assert!(vcpu.pauses_guest, "the rest is done");
        assert_eq!(counts(&f, probe.id), (1, 1));
        let failure = f.info(probe.id).action_failure;
        assert!(failure.contains(why), "{failure}");
        assert_eq!(f.byte(ENTRY), 0xcc);
        f.unregister(&[probe.id]);
    }
}

#[test]
fn a_hit_that_does_not_count_has_no_actions() {
    let f = Fixture::new();
    let mut spec = with("plain", &[set(Target::General(0), 1)]);
    spec.options.condition = vec![crate::condition::Comparison {
        operand: crate::condition::Operand::Cpu,
        relation: crate::condition::Relation::Equal,
        constant: 9,
        signed: false,
    }];
    let id = f.engine.register(&f.guest(), &[spec]).unwrap()[0].id;
    let mut vcpu = called(&f);
    f.trap(&mut vcpu);
    assert_eq!(vcpu.registers.rax, 0);
    assert_eq!(counts(&f, id), (0, 0));
}

#[test]
fn a_return_probe_changes_what_the_caller_gets() {
    let f = Fixture::with_arena();
    register(&f, "plain%return", &[HitAction::Override { value: 5 }]).unwrap();
    let mut vcpu = called(&f);
    f.trap(&mut vcpu);
    vcpu.registers.rip = f.word(STACK);
    vcpu.registers.rsp = STACK + 8;
    vcpu.registers.rax = 1;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!((vcpu.registers.rip, vcpu.registers.rax), (CALLER, 5));
    assert_eq!(f.events()[0].registers.rax, 1, "what the function returned");
}

#[test]
fn actions_that_can_t_be_done_there_are_refused() {
    let f = Fixture::with_arena();
    let over = HitAction::Override { value: 0 };
    let rip = set(Target::Rip, 0);
    for (place, actions, why) in [
        ("plain+0xa", vec![over.clone()], ActionRefusal::NotEntry(1)),
        ("table/8", vec![over.clone()], ActionRefusal::Watchpoint),
        ("plain%return", vec![rip], ActionRefusal::Returning),
        (
            "plain",
            vec![set(Target::General(16), 0)],
            ActionRefusal::Register(16),
        ),
        (
            "plain",
            vec![write(Some(20), 0, b"a")],
            ActionRefusal::Register(20),
        ),
        ("plain", vec![write(None, 0, b"")], ActionRefusal::Bytes(0)),
        (
            "plain",
            vec![write(None, 0, &[0; 257])],
            ActionRefusal::Bytes(257),
        ),
        ("plain", vec![over; 17], ActionRefusal::TooMany(17)),
    ] {
        match register(&f, place, &actions).unwrap_err() {
            RegisterError::Action { why: found, .. } => assert_eq!(found, why, "{place}"),
            other => panic!("{place}: {other}"),
        }
    }
    assert!(register(&f, "table/8", &[HitAction::Pause]).is_ok());
}

#[test]
fn a_probe_with_actions_is_no_jump_as_long_as_it_is_there() {
    let f = Fixture::with_jumps(|_| {});
    let plain = f.probe("framed");
    let id = register(&f, "other=framed", &[HitAction::Pause])
        .unwrap()
        .id;
    assert_eq!(f.optimize(), 0);
    let no_jump = Optimization::Not(NoJump::Actions);
    assert_eq!(f.info(plain.id).optimization, no_jump);
    f.unregister(&[id]);
    assert_eq!(f.optimize(), 1);
}

/// Keeps the hits that it is asked about.
#[derive(Default)]
struct Asked {
    hits: Mutex<Vec<HeldHit>>,
    dropped: Mutex<u32>,
}

impl Attendant for Asked {
    fn held(&self, hit: HeldHit) {
        self.hits.lock().push(hit);
    }

    fn dropped(&self) {
        *self.dropped.lock() += 1;
    }
}

const LONG: Duration = Duration::from_secs(3600);

fn attendant() -> (Arc<Asked>, Arc<dyn Attendant>) {
    let asked = Arc::new(Asked::default());
    (Arc::clone(&asked), asked)
}

fn release(f: &Fixture, vcpu: &mut TestVcpu) -> Action {
    f.engine.trap(vcpu, &*f.memory, Trap::Released)
}

#[test]
fn a_vcpu_stands_still_at_a_hit_until_its_attendant_answers() {
    let f = Fixture::new();
    let id = f.probe("plain").id;
    let (asked, who) = attendant();
    f.engine.attend(&[id], LONG, &who).unwrap();
    let mut vcpu = called(&f);
    vcpu.registers.rbp = 3;
    let before = vcpu.registers;
    assert_eq!(f.trap(&mut vcpu), Action::Hold);
    assert_eq!(vcpu.registers, before, "it stands at the breakpoint");
    assert!(f.engine.held_until(vcpu.id).unwrap() > Instant::now());
    assert_eq!(f.engine.held_until(VcpuId(1)), None);
    let number = {
        let hits = asked.hits.lock();
        assert_eq!((hits.len(), hits[0].event.probe), (1, id));
        assert_eq!(hits[0].registers, before);
        hits[0].number
    };
    let (_, stranger) = attendant();
    assert!(f.engine.answer(&stranger, number, Vec::new()).is_err());
    assert!(f.engine.answer(&who, number + 1, Vec::new()).is_err());
    let answer = vec![set(Target::General(5), 9)];
    f.engine.answer(&who, number, answer.clone()).unwrap();
    assert!(f.engine.answer(&who, number, answer).is_err(), "twice");
    assert_eq!(f.engine.held_until(vcpu.id), None);
    assert_eq!(release(&f, &mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + ENTRY + 1);
    assert_eq!(f.word(STACK - 8), 9);
    assert_eq!((f.hit_count(id), counts(&f, id)), (1, (1, 0)));
    assert_eq!(*asked.dropped.lock(), 0);
}

#[test]
fn an_attendant_that_does_not_answer_in_time_is_asked_no_more() {
    let f = Fixture::new();
    let id = f.probe("plain").id;
    let (asked, who) = attendant();
    f.engine.attend(&[id], Duration::ZERO, &who).unwrap();
    assert!(f.info(id).attended);
    let mut vcpu = called(&f);
    assert_eq!(f.trap(&mut vcpu), Action::Hold);
    assert!(f.engine.held_until(vcpu.id).unwrap() <= Instant::now());
    assert_eq!(release(&f, &mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + ENTRY + 1);
    assert_eq!(*asked.dropped.lock(), 1);
    assert!(!f.info(id).attended);
    assert_eq!(f.trap(&mut called(&f)), Action::Resume);
    assert_eq!(asked.hits.lock().len(), 1);
    assert_eq!(f.hit_count(id), 2);
}

#[test]
fn an_attendant_that_goes_lets_its_hits_go_on() {
    let f = Fixture::new();
    let id = f.probe("plain").id;
    let (asked, who) = attendant();
    f.engine.attend(&[id], LONG, &who).unwrap();
    let mut vcpu = called(&f);
    assert_eq!(f.trap(&mut vcpu), Action::Hold);
    f.engine.ask_no_more(&who);
    assert_eq!(f.engine.held_until(vcpu.id), None);
    assert_eq!(release(&f, &mut vcpu), Action::Resume);
    assert_eq!(*asked.dropped.lock(), 0, "it knows");
}

#[test]
fn a_probe_has_one_attendant_and_a_watchpoint_none() {
    let f = Fixture::new();
    let [id, other] = [f.probe("plain").id, f.probe("twice=0xffffffff81000140").id];
    let watch = f.probe("table/8").id;
    let (_, first) = attendant();
    let (_, second) = attendant();
    f.engine.attend(&[id], LONG, &first).unwrap();
    let both = f.engine.attend(&[other, id], LONG, &second);
    assert_eq!(both, Err(AttendError::Attended(id)));
    assert!(!f.info(other).attended, "all or none");
    let watched = f.engine.attend(&[watch], LONG, &second);
    assert_eq!(watched, Err(AttendError::Watchpoint(watch)));
    let unknown = f.engine.attend(&[ProbeId(99)], LONG, &second);
    assert_eq!(unknown, Err(AttendError::UnknownProbe(ProbeId(99))));
    f.engine.ask_no_more(&first);
    assert_eq!(f.engine.attend(&[other, id], LONG, &second), Ok(()));
}

#[test]
fn two_probes_at_one_place_are_asked_about_one_after_the_other() {
    let f = Fixture::new();
    let [one, two] = [f.probe("plain").id, f.probe("other=plain").id];
    let (first, their) = attendant();
    let (second, other) = attendant();
    f.engine.attend(&[one], LONG, &their).unwrap();
    f.engine.attend(&[two], LONG, &other).unwrap();
    let mut vcpu = called(&f);
    assert_eq!(f.trap(&mut vcpu), Action::Hold);
    assert_eq!(second.hits.lock().len(), 0);
    let number = first.hits.lock()[0].number;
    let value = vec![set(Target::General(0), 4)];
    f.engine.answer(&their, number, value).unwrap();
    assert_eq!(release(&f, &mut vcpu), Action::Hold);
    let hit = second.hits.lock().remove(0);
    assert_eq!((hit.event.probe, hit.registers.rax), (two, 4));
    let over = vec![HitAction::Override { value: 8 }];
    f.engine.answer(&other, hit.number, over).unwrap();
    assert_eq!(release(&f, &mut vcpu), Action::Resume);
    assert_eq!((vcpu.registers.rip, vcpu.registers.rax), (CALLER, 8));
}

#[test]
fn a_probe_that_goes_while_its_hit_is_held_leaves_the_guest_its_instruction() {
    let f = Fixture::new();
    let id = f.probe("plain").id;
    let (_, who) = attendant();
    f.engine.attend(&[id], LONG, &who).unwrap();
    let mut vcpu = called(&f);
    assert_eq!(f.trap(&mut vcpu), Action::Hold);
    f.unregister(&[id]);
    f.engine.ask_no_more(&who);
    assert_eq!(release(&f, &mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + ENTRY, "to execute what is there");
    assert_eq!(f.byte(ENTRY), 0x55);
}

#[test]
fn a_hit_that_is_only_counted_is_asked_about_with_all_registers_and_no_event() {
    let f = Fixture::new();
    let mut spec = spec("plain");
    spec.options.capture = Capture::Count;
    let id = f.engine.register(&f.guest(), &[spec]).unwrap()[0].id;
    let (asked, who) = attendant();
    f.engine.attend(&[id], LONG, &who).unwrap();
    let mut vcpu = called(&f);
    vcpu.registers.rdi = 6;
    assert_eq!(f.trap(&mut vcpu), Action::Hold);
    let hit = asked.hits.lock().remove(0);
    assert_eq!(hit.registers.rdi, 6);
    assert_eq!(hit.event.registers, Fetches::default().take(&hit.registers));
    assert_eq!(f.events().len(), 0);
}

#[test]
fn an_attendant_at_a_return_decides_what_the_caller_gets() {
    let f = Fixture::with_arena();
    let id = f.probe("plain%return").id;
    let (asked, who) = attendant();
    f.engine.attend(&[id], LONG, &who).unwrap();
    let mut vcpu = called(&f);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    vcpu.registers.rip = f.word(STACK);
    vcpu.registers.rsp = STACK + 8;
    assert_eq!(f.trap(&mut vcpu), Action::Hold);
    assert_eq!(vcpu.registers.rip, CALLER);
    let number = asked.hits.lock()[0].number;
    let over = vec![HitAction::Override { value: 11 }];
    f.engine.answer(&who, number, over).unwrap();
    assert_eq!(release(&f, &mut vcpu), Action::Resume);
    assert_eq!((vcpu.registers.rip, vcpu.registers.rax), (CALLER, 11));
}

#[test]
fn a_probe_that_somebody_attends_to_is_no_jump_meanwhile() {
    let f = Fixture::with_jumps(|_| {});
    let id = f.probe("framed").id;
    assert_eq!(f.optimize(), 1);
    let (_, who) = attendant();
    f.engine.attend(&[id], LONG, &who).unwrap();
    let switch = |on| {
        f.engine
            .switch(&f.guest(), Some(&[id]), Switch::Attended(on))
            .unwrap();
    };
    switch(true);
    assert_eq!(f.optimize(), 0);
    let no_jump = Optimization::Not(NoJump::Attended);
    assert_eq!(f.info(id).optimization, no_jump);
    assert_eq!(f.trap(&mut vcpu_at(0x340)), Action::Hold);
    f.engine.ask_no_more(&who);
    switch(false);
    assert_eq!(f.optimize(), 1);
}

#[test]
fn a_held_hit_whose_place_is_a_jump_by_now_is_hit_once() {
    let f = Fixture::with_jumps(|_| {});
    let id = f.probe("framed").id;
    let (_, who) = attendant();
    f.engine.attend(&[id], LONG, &who).unwrap();
    let mut vcpu = vcpu_at(0x340);
    assert_eq!(f.trap(&mut vcpu), Action::Hold);
    f.engine.ask_no_more(&who);
    assert_eq!(f.optimize(), 1);
    assert_eq!(release(&f, &mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, TEXT + 0x341);
    assert_eq!(f.hit_count(id), 1);
}

#[test]
fn a_client_writes_memory_but_nothing_of_ours() {
    let f = Fixture::new();
    f.probe("plain");
    let tables = guest_state::Vcpu::page_tables(&mut vcpu_at(0)).unwrap();
    let write = |at, bytes: &[u8]| {
        f.engine
            .write_memory(&*f.memory, tables, GuestVirtAddr(at), bytes)
    };
    assert_eq!(write(0x9000, b"abcd"), Ok(()));
    assert_eq!(f.bytes_at(0x9000, 4), b"abcd");
    assert!(write(PHYS + ENTRY, b"a").is_err());
    assert_eq!(f.byte(ENTRY), 0xcc);
}
