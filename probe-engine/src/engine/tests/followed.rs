//! Return probes that are jumps.

use guest_state::{Action, GuestMemory, GuestPhysAddr, GuestVirtAddr, Tsc};

use super::ended;
use super::fixture::{Fixture, PHYS, STACK, gs_base, spec, vcpu_at};
use super::jumps::{jumps, jumps_and};
use crate::arena::{CALLS, RINGS, TRAMPOLINE};
use crate::calls::layout as table;
use crate::condition::Relation;
use crate::detour;
use crate::event::Detail;
use crate::filter::{Filter, Number};
use crate::probe::{Capture, Optimization, ProbeInfo, ProbeKind, ProbeSpec};
use crate::ring::layout;
use crate::value::{Base, Load, Space, Take, Taken, Value};

/// Where followed calls return to.
pub const CALLER: u64 = 0xffff_ffff_8100_0700;

/// A return probe that is a jump with detour 0.
pub fn followed(f: &Fixture, change: impl FnOnce(&mut ProbeSpec)) -> ProbeInfo {
    let mut spec = spec("framed%return");
    change(&mut spec);
    let id = f.engine.register(&f.guest(), &[spec]).unwrap()[0].id;
    assert_eq!(f.optimize(), 1);
    let probe = f.info(id);
    assert_eq!(probe.optimization, Optimization::Optimized);
    probe
}

/// Returns the physical address of an offset in the table of calls.
pub fn at(f: &Fixture, offset: u64) -> u64 {
    f.engine.arena.phys(CALLS.start).unwrap().0 + offset
}

/// Makes detour `number` follow a call, with its return address at `slot`, in the table's entry `index`.
pub fn enter(f: &Fixture, index: u64, slot: u64, caller: u64, number: u64) {
    let call = at(f, table::CALLS + index * table::CALL_LEN);
    f.set_word(call + table::CALLER, caller);
    f.set_word(call + table::WORD, number);
    f.set_word(at(f, index * 8), slot);
    f.set_word(slot, TRAMPOLINE.0);
}

pub fn keys(f: &Fixture) -> Vec<u64> {
    let keys = (0..8).map(|index| f.word(at(f, index * 8)));
    keys.filter(|key| *key != 0).collect()
}

fn block(f: &Fixture) -> u64 {
    let environment = f.engine.environment(&*f.memory).unwrap();
    let at = gs_base(0).wrapping_add(environment.block);
    f.engine.arena.phys(GuestVirtAddr(at)).unwrap().0
}

/// Does to the first vCPU's ring what the trampoline does: word `n` of the record is `n`.
pub fn put_return(f: &Fixture) {
    put_return_with(f, &[]);
}

/// As [`put_return`], with these words of values.
fn put_return_with(f: &Fixture, values: &[u64]) {
    let head = block(f) + layout::HEAD;
    let position = f.word(head);
    let ring = f.engine.arena.phys(RINGS).unwrap().0 + position;
    for word in 1..layout::RETURN_WORDS {
        f.set_word(ring + word * 8, word);
    }
    f.set_word(ring + layout::RETURN_CALLER, CALLER);
    let mut words = layout::RETURN_WORDS;
    for value in values {
        f.set_word(ring + words * 8, *value);
        words += 1;
    }
    f.set_word(ring, layout::return_header(0, words as u8));
    f.set_word(head, position + words * 8);
}

/// Adds to a counter of detour 0.
pub fn count(f: &Fixture, which: u64, times: u32) {
    let at = GuestPhysAddr(at(f, table::TALLIES + which));
    f.memory.write(at, &times.to_le_bytes()).unwrap();
}

#[test]
fn a_return_from_a_ring_is_reported_like_a_breakpoint_s() {
    let f = jumps();
    let probe = followed(&f, |_| {});
    put_return(&f);
    f.engine.drain_all(&*f.memory);
    let event = f.events().remove(0);
    assert_eq!((event.probe, event.tsc, event.task), (probe.id, Tsc(1), 2));
    let registers = event.registers;
    assert_eq!(
        (registers.rax, registers.rflags, registers.rip),
        (3, 19, CALLER)
    );
    let Detail::Return {
        caller,
        entry_tsc,
        entry,
        tail_call: false,
    } = event.detail
    else {
        panic!("{event:?}");
    };
    assert_eq!((caller.0, entry_tsc), (CALLER, Tsc(21)));
    assert_eq!(
        (entry.rax, entry.rflags, entry.rip),
        (22, 38, probe.address.0)
    );
    let info = f.info(probe.id);
    assert_eq!((info.hits, info.missed, info.exits), (1, 0, 0));
}

#[test]
fn returns_that_are_only_counted_and_missed_ones_are_counted() {
    let f = jumps();
    let probe = followed(&f, |spec| spec.options.capture = Capture::Count);
    count(&f, table::COUNTED, 5);
    count(&f, table::MISSED, 2);
    f.engine.drain(&*f.memory);
    count(&f, table::COUNTED, 6);
    f.engine.drain(&*f.memory);
    let info = f.info(probe.id);
    assert_eq!((info.hits, info.missed), (6, 2));
}

#[test]
fn a_return_tells_of_registers_and_of_memory_that_its_detour_has_looked_at() {
    let word = |base, take| Value {
        base,
        loads: Vec::new(),
        take,
    };
    let at = Load {
        offset: 8,
        space: Space::Any,
    };
    let values = [
        word(Base::Register(0), Take::Word),
        word(Base::Register(0), Take::Memory { at, len: 2 }),
        word(Base::EntryRegister(0), Take::Word),
        word(Base::EntryRegister(7), Take::Text { at, most: 12 }),
    ];
    let f = jumps();
    let probe = followed(&f, |spec| spec.options.values = values.into());
    // The text can't be read.
    put_return_with(&f, &[2, 0x1234, u64::MAX]);
    f.engine.drain_all(&*f.memory);
    let event = f.events().remove(0);
    assert_eq!(event.probe, probe.id);
    let number = |number: u64| Taken::Bytes(number.to_le_bytes().to_vec());
    let expected = [
        number(3),
        Taken::Bytes(vec![0x34, 0x12]),
        number(22),
        Taken::Fault,
    ];
    assert_eq!(event.values.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn of_returns_that_are_only_counted_those_count_that_meet_the_filter() {
    let f = jumps();
    let rax_is = |constant| Filter::Number {
        of: Number::Value {
            index: 0,
            shift: 0,
            width: 64,
            signed: false,
        },
        relation: Relation::Equal,
        constant,
    };
    let rax = Value {
        base: Base::Register(0),
        loads: Vec::new(),
        take: Take::Word,
    };
    for (constant, hits) in [(3, 1), (4, 0)] {
        let probe = followed(&f, |spec| {
            spec.options.capture = Capture::Count;
            spec.options.values = [rax.clone()].into();
            spec.options.filter = Some(rax_is(constant).into());
        });
        // The values that the filter compares are in the record.
        put_return_with(&f, &[8, 3]);
        f.engine.drain_all(&*f.memory);
        let info = f.info(probe.id);
        assert_eq!((info.hits, info.missed), (hits, 0), "rax is {constant}");
        assert!(f.events().is_empty());
        f.unregister(&[probe.id]);
    }
}

#[test]
fn a_probe_on_the_entry_and_one_on_the_return_share_a_jump() {
    let f = jumps();
    let before = f.probe("before=framed");
    let mut after = spec("after=framed%return");
    after.options.capture = Capture::Count;
    let after = f.engine.register(&f.guest(), &[after]).unwrap()[0].id;
    assert_eq!(f.optimize(), 2);
    count(&f, table::COUNTED, 3);
    f.engine.drain(&*f.memory);
    assert_eq!((f.hit_count(before.id), f.hit_count(after)), (0, 3));
}

#[test]
fn probes_with_other_limits_share_no_jump() {
    let f = jumps();
    let first = followed(&f, |_| {});
    let mut second = spec("second=framed%return");
    second.kind = ProbeKind::Return { maxactive: Some(3) };
    let second = f.engine.register(&f.guest(), &[second]).unwrap()[0].id;
    f.optimize();
    for id in [first.id, second] {
        let told = f.info(id).optimization;
        assert!(matches!(told, Optimization::Not(why) if why.kind() == "maxactive"));
    }
    f.unregister(&[second]);
    assert_eq!(f.optimize(), 1);
}

#[test]
fn a_lossless_return_with_its_ring_full_waits_for_room() {
    let f = jumps();
    let probe = followed(&f, |spec| spec.options.lossless = true);
    assert!(f.engine.debugging().breakpoints);
    put_return(&f);
    let environment = f.engine.environment(&*f.memory).unwrap();
    let full = detour::trampoline(&environment).unwrap().full;
    let trap = TRAMPOLINE.wrapping_add(full.trap.into());
    let mut vcpu = vcpu_at(0);
    (vcpu.registers.rip, vcpu.registers.rax) = (trap.0, 0);
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, trap.0 + 1);
    let info = f.info(probe.id);
    assert_eq!((info.hits, info.exits), (1, 1));
    // The guest may have any number there.
    for rax in [1, 1 << 30, u64::MAX] {
        (vcpu.registers.rip, vcpu.registers.rax) = (trap.0, rax);
        assert_eq!(f.trap(&mut vcpu), Action::Resume);
    }
    f.unregister(&[probe.id]);
    assert!(f.engine.debugging().breakpoints, "its calls may come there");
}

#[test]
fn a_table_that_the_guest_has_scribbled_on_does_harm_to_the_guest_only() {
    let f = jumps();
    let probe = followed(&f, |_| {});
    f.set_word(STACK, TRAMPOLINE.0);
    let places = table::BUCKETS * table::WAYS;
    for index in 0..places {
        let call = at(&f, table::CALLS + index * table::CALL_LEN);
        let (key, caller) = match index % 6 {
            0 => (u64::MAX - index, CALLER),
            1 => (STACK, TRAMPOLINE.0),
            2 => (STACK + 1, CALLER),
            3 => (CALLS.start.0 + index * 8, CALLER),
            4 => (STACK, CALLER + index),
            _ => (index << 40, 0),
        };
        f.set_word(at(&f, index * 8), key);
        f.set_word(call + table::CALLER, caller);
        f.set_word(call + table::WORD, index % 3);
    }
    for which in [table::ACTIVE, table::MISSED, table::COUNTED] {
        count(&f, which, u32::MAX);
    }
    f.engine.drain(&*f.memory);
    let told = f.info(probe.id);
    assert_eq!((told.hits, told.missed), (0, u64::from(u32::MAX)));
    let text = f.bytes_at(PHYS, 0x400);
    f.unregister(&[probe.id]);
    assert_eq!(
        f.bytes_at(PHYS, 0x340),
        text[..0x340],
        "no text but the probe's"
    );
    assert!(!f.engine.debugging().breakpoints);
}

#[test]
fn calls_that_the_guest_has_made_up_leave_the_optimizer_nothing_to_wait_for() {
    let f = jumps();
    followed(&f, |_| {});
    let word = table::ORPHAN | table::BEGINS;
    for index in 0..8 {
        let call = at(&f, table::CALLS + index * table::CALL_LEN);
        f.set_word(at(&f, index * 8), STACK + 0x40 * index);
        f.set_word(call + table::WORD, word.into());
    }
    f.probe("wide");
    for _ in 0..2 {
        f.optimize();
    }
    assert!(f.engine.prepare_jumps(&*f.memory).is_empty());
}

#[test]
fn calls_that_never_return_are_counted_by_the_guest_when_they_are_asked_for_and_at_its_end() {
    let f = jumps_and(ended::know);
    let probe = followed(&f, |_| {});
    count(&f, table::ENDED, 3);
    f.engine.drain(&*f.memory);
    assert_eq!(f.info(probe.id).ended, 3);
    let (task, canary) = ended::task(1);
    ended::begin(&f, 1);
    for index in 0..2 {
        enter(&f, index, STACK + 0x40 * index, CALLER, 0);
        let call = at(&f, table::CALLS + index * table::CALL_LEN);
        f.set_word(call + table::TASK, task * (1 - index));
        f.set_word(call + table::CANARY, canary * (1 - index));
    }
    count(&f, table::ACTIVE, 2);
    f.engine.count_ended(&f.guest());
    assert_eq!(f.info(probe.id).ended, 3);
    ended::end(&f, 1, 0);
    assert!(f.engine.any_call_has_ended(&*f.memory));
    f.engine.count_ended(&f.guest());
    assert!(!f.engine.any_call_has_ended(&*f.memory));
    assert_eq!((keys(&f), f.info(probe.id).ended), (vec![STACK + 0x40], 4));
    f.engine.drain_ended(&*f.memory);
    assert_eq!((keys(&f), f.info(probe.id).ended), (vec![], 5));
    assert_eq!(f.info(probe.id).missed, 0);
}

/// Counters of detour `number`.
pub fn tally(number: u64) -> u64 {
    table::TALLIES + number * table::TALLY_LEN
}

#[test]
fn calls_of_tasks_that_have_ended_make_room_before_there_is_none() {
    let f = jumps_and(ended::know);
    let probe = followed(&f, |spec| {
        spec.kind = ProbeKind::Return { maxactive: Some(2) };
    });
    for number in 0..2 {
        ended::begin(&f, number);
        let (task, canary) = ended::task(number);
        enter(&f, number, STACK + 0x40 * number, CALLER, 0);
        let call = at(&f, table::CALLS + number * table::CALL_LEN);
        f.set_word(call + table::TASK, task);
        f.set_word(call + table::CANARY, canary);
    }
    f.optimize();
    count(&f, table::ACTIVE, 2);
    f.engine.drain(&*f.memory);
    assert!(f.engine.has_waiting());
    assert!(f.engine.prepare_jumps(&*f.memory).is_empty(), "both live");
    let listed = f.engine.followed_calls(&f.guest()).unwrap();
    let tasks: Vec<_> = listed.iter().filter_map(|call| call.task).collect();
    assert_eq!(tasks, [0, 1].map(|number| ended::task(number).0));
    assert!(listed.iter().all(|call| call.probes == [probe.id]));
    ended::end(&f, 0, 0);
    f.engine.drain(&*f.memory);
    assert!(f.engine.has_waiting());
    f.optimize();
    assert_eq!(keys(&f), [STACK + 0x40]);
    assert_eq!(f.word(at(&f, tally(0) + table::ACTIVE)) as u32, 1);
    assert_eq!((f.info(probe.id).missed, f.info(probe.id).ended), (0, 1));
    // The end of the other call is found when probes are removed.
    ended::end(&f, 1, 0);
    let removed = f.engine.unregister(&f.guest(), &[probe.id]).unwrap();
    assert_eq!((removed[0].missed, removed[0].ended), (0, 2));
    assert_eq!(keys(&f), []);
    assert_eq!(f.word(at(&f, tally(0) + table::ACTIVE)) as u32, 0);
}
