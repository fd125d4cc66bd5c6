//! To which probes the hits belong that are read after a change of probes.

use guest_state::{Action, GuestMemory, GuestPhysAddr, Tsc};

use super::fixture::{ALONE, Fixture, PHYS, STACK, TEXT, spec, vcpu_at};
use super::followed::{count, enter, followed, put_return};
use super::jumps::{block, jump, jumps, put_record};
use crate::arena::RINGS;
use crate::calls::layout as table;
use crate::condition::{Comparison, Operand, Relation};
use crate::probe::{Capture, Options, ProbeId, ProbeInfo, ProbeKind, Switch};
use crate::ring::layout;

/// Offset of `framed`.
const FRAMED: u64 = 0x340;
/// Offsets of `plain`'s first instruction, and of its return.
const PLAIN: u64 = 9;
const PLAIN_RET: u64 = 14;
/// Words of a record with all registers.
const WORDS: u8 = (layout::RECORD_VALUES / 8) as u8 + 17;

type Turn = fn(&Fixture, ProbeId);

/// All ways in which a probe stops being a jump.
const SWITCHES: [(&str, Turn); 5] = [
    ("disable", |f, id| f.enable(id, false)),
    ("disarm", |f, _| {
        f.engine
            .switch(&f.guest(), None, Switch::Enabled(false))
            .unwrap();
    }),
    ("optimization off", |f, _| {
        f.engine
            .switch(&f.guest(), None, Switch::Optimize(false))
            .unwrap();
    }),
    ("one off", |f, id| {
        f.engine
            .switch(&f.guest(), Some(&[id]), Switch::Optimize(false))
            .unwrap();
    }),
    ("a post event", |f, _| {
        f.probe("post=framed%post");
    }),
];

fn counted(f: &Fixture, id: ProbeId) -> (u64, u64) {
    let info = f.info(id);
    (info.hits, info.missed)
}

/// Adds to the counter of a detour on the first CPU.
fn bump(f: &Fixture, detour: u64, total: u32) {
    let cell = block(f, 0) + layout::CELLS + detour * layout::CELL;
    let bytes = total.to_le_bytes();
    f.memory.write(GuestPhysAddr(cell), &bytes).unwrap();
}

/// Reserves space in the first ring, as a vCPU in the middle of a record does. If `begun`, also writes the header of an
/// unfinished record. Returns the physical address of the record.
fn open_record(f: &Fixture, detour: u32, begun: bool) -> u64 {
    let head = block(f, 0) + layout::HEAD;
    let at = f.word(head);
    let place = f.engine.arena.phys(RINGS).unwrap().0 + at;
    if begun {
        f.set_word(place, layout::open(layout::header(detour, WORDS)));
    }
    f.set_word(head, at + u64::from(WORDS) * 8);
    place
}

fn finish(f: &Fixture, place: u64, detour: u32) {
    f.set_word(place + layout::RECORD_TSC, 7);
    f.set_word(place, layout::header(detour, WORDS));
}

/// Two probes that share a jump when both are enabled. The second one is disabled.
fn two() -> (Fixture, ProbeInfo, ProbeId) {
    let f = jumps();
    let first = jump(&f, "framed");
    let mut second = spec("second=framed");
    second.enabled = false;
    let second = f.engine.register(&f.guest(), &[second]).unwrap()[0].id;
    f.optimize();
    (f, first, second)
}

#[test]
fn records_in_the_rings_are_counted_and_told_whatever_ends_the_jump() {
    for (name, switch) in SWITCHES {
        let f = jumps();
        let probe = jump(&f, "framed");
        put_record(&f, 0);
        bump(&f, 0, 3);
        switch(&f, probe.id);
        f.engine.drain_all(&*f.memory);
        assert_eq!(counted(&f, probe.id), (1, 3), "{name}");
        assert_eq!(f.events().len(), 1, "{name}");
    }
}

#[test]
fn removal_tells_of_what_the_rings_hold() {
    let f = jumps();
    let probe = jump(&f, "framed");
    put_record(&f, 0);
    bump(&f, 0, 3);
    let removed = f.engine.unregister(&f.guest(), &[probe.id]).unwrap();
    assert_eq!((removed[0].hits, removed[0].missed), (1, 3));
}

#[test]
fn a_probe_that_is_enabled_beside_a_live_jump_has_no_hits_from_before() {
    let (f, first, second) = two();
    put_record(&f, 0);
    bump(&f, 0, 2);
    f.enable(second, true);
    assert_eq!(f.engine.drain_all(&*f.memory).records, 0);
    assert_eq!(counted(&f, first.id), (1, 2));
    assert_eq!(counted(&f, second), (0, 0));
    put_record(&f, 0);
    bump(&f, 0, 5);
    f.enable(second, false);
    put_record(&f, 0);
    f.engine.drain_all(&*f.memory);
    assert_eq!(counted(&f, first.id), (3, 5));
    assert_eq!(counted(&f, second), (1, 3));
}

#[test]
fn a_probe_that_is_registered_beside_a_live_jump_has_no_hits_from_before() {
    let f = jumps();
    let first = jump(&f, "framed");
    put_record(&f, 0);
    let second = f.probe("second=framed");
    f.engine.drain_all(&*f.memory);
    assert_eq!((f.hit_count(first.id), f.hit_count(second.id)), (1, 0));
}

#[test]
fn an_unfinished_record_is_of_those_who_were_enabled_when_it_was_begun() {
    for begun in [false, true] {
        let (f, first, second) = two();
        let place = open_record(&f, 0, begun);
        f.enable(second, true);
        // It is behind the unfinished record, and belongs to both probes.
        put_record(&f, 0);
        f.engine.drain(&*f.memory);
        assert_eq!((f.hit_count(first.id), f.hit_count(second)), (0, 0));
        finish(&f, place, 0);
        f.engine.drain_all(&*f.memory);
        assert_eq!((f.hit_count(first.id), f.hit_count(second)), (2, 1));

        let place = open_record(&f, 0, begun);
        f.enable(first.id, false);
        f.enable(second, false);
        finish(&f, place, 0);
        f.engine.drain_all(&*f.memory);
        assert_eq!((f.hit_count(first.id), f.hit_count(second)), (3, 2));
    }
}

#[test]
fn a_vcpu_in_a_detour_whose_jump_goes_is_a_hit_of_the_probes_that_it_had() {
    let f = jumps();
    let probe = jump(&f, "framed");
    f.enable(probe.id, false);
    put_record(&f, 0);
    bump(&f, 0, 1);
    f.engine.drain_all(&*f.memory);
    assert_eq!(counted(&f, probe.id), (1, 1));
}

#[test]
fn a_record_unfinished_at_a_removal_counts_as_missed_and_those_behind_it_as_hits() {
    for begun in [false, true] {
        let f = jumps();
        let probe = jump(&f, "framed");
        let place = open_record(&f, 0, begun);
        put_record(&f, 0);
        let removed = f.engine.unregister(&f.guest(), &[probe.id]).unwrap();
        // If a record has no header yet, it isn't known whose it is.
        let missed = u64::from(begun);
        assert_eq!((removed[0].hits, removed[0].missed), (1, missed));
        finish(&f, place, 0);
        f.engine.drain_all(&*f.memory);
        assert_eq!(f.events().len(), 1, "nobody asks for its event any more");
        assert_eq!(
            f.word(block(&f, 0) + layout::HEAD),
            2 * u64::from(WORDS) * 8
        );
        assert_eq!(
            f.word(block(&f, 0) + layout::TAIL),
            2 * u64::from(WORDS) * 8
        );
    }
}

#[test]
fn no_breakpoint_s_event_overtakes_a_record_when_optimization_is_switched_off() {
    let f = jumps();
    jump(&f, "framed");
    let place = open_record(&f, 0, true);
    put_record(&f, 0);
    f.engine
        .switch(&f.guest(), None, Switch::Optimize(false))
        .unwrap();
    let mut vcpu = vcpu_at(FRAMED);
    vcpu.tsc = Tsc(9);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    finish(&f, place, 0);
    for _ in 0..3 {
        f.engine.drain(&*f.memory);
    }
    let times: Vec<u64> = f.events().iter().map(|event| event.tsc.0).collect();
    assert_eq!(times, [7, 7, 9]);
    // After some drains, events no longer wait for the unfinished record.
    for _ in 0..16 {
        f.engine.drain(&*f.memory);
    }
    f.trap(&mut vcpu_at(FRAMED));
    assert_eq!(f.events().len(), 4);
}

#[test]
fn a_call_that_returns_when_its_probe_is_disabled_counts_as_missed() {
    let f = jumps();
    let probe = followed(&f, |_| {});
    f.enable(probe.id, false);
    put_return(&f);
    f.engine.drain_all(&*f.memory);
    assert_eq!((counted(&f, probe.id), f.events().len()), ((0, 1), 0));

    let f = jumps();
    let probe = followed(&f, |spec| spec.options.capture = Capture::Count);
    count(&f, table::COUNTED, 2);
    f.enable(probe.id, false);
    count(&f, table::COUNTED, 5);
    f.engine.drain(&*f.memory);
    assert_eq!(counted(&f, probe.id), (2, 3));
    // The probe is a breakpoint now, and the calls that the jump followed are still counted as its own.
    f.enable(probe.id, true);
    count(&f, table::COUNTED, 6);
    f.engine.drain(&*f.memory);
    assert_eq!(counted(&f, probe.id), (3, 3));
}

#[test]
fn calls_under_way_at_a_removal_count_as_missed() {
    let f = jumps();
    let probe = followed(&f, |_| {});
    enter(&f, 0, STACK, TEXT + 0x700, 0);
    enter(&f, 1, STACK + 0x40, TEXT + 0x700, 0);
    let removed = f.engine.unregister(&f.guest(), &[probe.id]).unwrap();
    assert_eq!((removed[0].hits, removed[0].missed), (0, 2));

    let f = Fixture::with_arena();
    let probe = f.probe("framed%return");
    f.set_word(STACK, TEXT + 0x700);
    f.trap(&mut vcpu_at(FRAMED));
    let removed = f.engine.unregister(&f.guest(), &[probe.id]).unwrap();
    assert_eq!((removed[0].hits, removed[0].missed), (0, 1));
}

#[test]
fn calls_from_before_a_return_probe_was_enabled_are_none_of_its() {
    let f = jumps();
    let first = followed(&f, |_| {});
    enter(&f, 0, STACK, TEXT + 0x700, 0);
    let mut second = spec("second=framed%return");
    second.options = Options {
        capture: Capture::FULL,
        ..Options::default()
    };
    let second = f.engine.register(&f.guest(), &[second]).unwrap()[0].id;
    assert_eq!(f.optimize(), 2, "another jump, for the calls of both");
    put_return(&f);
    f.engine.drain_all(&*f.memory);
    assert_eq!((f.hit_count(first.id), f.hit_count(second)), (1, 0));
    assert!(matches!(f.info(second).kind, ProbeKind::Return { .. }));
}

#[test]
fn a_vcpu_that_trapped_on_a_breakpoint_that_is_gone_now_is_a_missed_hit() {
    let f = Fixture::new();
    let probe = f.probe("framed");
    let mut vcpu = vcpu_at(FRAMED);
    f.enable(probe.id, false);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(counted(&f, probe.id), (0, 1));
    // If there is a jump now, the jump counts the hit.
    let f = jumps();
    let probe = jump(&f, "framed");
    f.trap(&mut vcpu_at(FRAMED));
    assert_eq!(counted(&f, probe.id), (0, 0));
}

#[test]
fn a_call_whose_breakpoint_is_gone_now_is_missed_by_every_kind_of_probe_that_it_concerns() {
    let f = Fixture::with_arena();
    f.start();
    let mut at_rets = spec("rets=plain");
    at_rets.kind = ProbeKind::Exits { maxactive: None };
    let mut other_cpu = spec("other=plain");
    other_cpu.options.condition = vec![Comparison {
        operand: Operand::Cpu,
        relation: Relation::Equal,
        constant: 7,
        signed: false,
    }];
    let specs = [at_rets, other_cpu, spec("r=plain%return"), spec("p=plain")];
    let added = f.engine.register(&f.guest(), &specs).unwrap();
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    // The entry, and a return. It isn't known whose call returns.
    for offset in [PLAIN, PLAIN_RET] {
        assert_eq!(f.trap(&mut vcpu_at(offset)), Action::Resume);
        let missed = added.iter().map(|it| counted(&f, it.id));
        assert_eq!(missed.collect::<Vec<_>>(), [(0, 1), (0, 0), (0, 1), (0, 1)]);
    }
}

#[test]
fn a_jump_that_comes_while_a_vcpu_waits_to_step_alone_does_not_count_its_hit_again() {
    let f = jumps();
    // Without memory at the stack, `push` can't be emulated.
    let probe = f.probe("framed");
    let mut vcpu = vcpu_at(FRAMED);
    vcpu.registers.rsp = 0x9000_0000;
    assert_eq!(f.trap(&mut vcpu), ALONE);
    assert_eq!(f.hit_count(probe.id), 1);
    assert_eq!(f.optimize(), 1);
    assert!(!f.engine.lift_for_step(&*f.memory, &mut vcpu));
    let site = f.engine.table().site(probe.address).cloned().unwrap();
    let copy = site.jump().unwrap().copy(0).unwrap();
    assert_eq!(vcpu.registers.rip, copy.0);
    assert_ne!(f.byte(FRAMED), 0xcc, "{PHYS:#x}");
}

#[test]
fn a_hit_whose_condition_can_t_be_judged_counts_as_missed() {
    let f = Fixture::new();
    let mut of_task = spec("framed");
    of_task.options.condition = vec![Comparison {
        operand: Operand::Pid,
        relation: Relation::Equal,
        constant: 7,
        signed: false,
    }];
    let id = f.engine.register(&f.guest(), &[of_task]).unwrap()[0].id;
    f.trap(&mut vcpu_at(FRAMED));
    assert_eq!(counted(&f, id), (0, 1));
}
