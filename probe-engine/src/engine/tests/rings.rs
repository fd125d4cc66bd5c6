//! Rings that are full, or held up, and detours of removed probes.

use guest_state::testing::TestVcpu;
use guest_state::{Action, GuestVirtAddr, VcpuId};

use super::fixture::{Fixture, STACK, TEXT, spec, vcpu_at};
use super::jumps::{block, jump, jumps, put_record};
use crate::arena::RINGS;
use crate::condition::{Comparison, Operand, Relation};
use crate::probe::{Optimization, ProbeId, ProbeInfo};
use crate::ring::layout::{self, RING_LEN};

/// Offset of `framed`.
const FRAMED: u64 = 0x340;
const WORDS: u8 = (layout::RECORD_VALUES / 8) as u8 + 17;

/// Reserves space for a record in a CPU's ring. If `begun`, also writes the header of an unfinished
/// record of detour 0.
fn reserve(f: &Fixture, cpu: u64, begun: bool) {
    let head = block(f, cpu) + layout::HEAD;
    let at = f.word(head);
    if begun {
        let ring = RINGS.wrapping_add(cpu * 2 * RING_LEN);
        let place = f.engine.arena.phys(ring).unwrap().0 + at % RING_LEN;
        f.set_word(place, layout::open(layout::header(0, WORDS)));
    }
    f.set_word(head, at + u64::from(WORDS) * 8);
}

fn lossless(f: &Fixture) -> ProbeInfo {
    let mut lossless = spec("framed");
    lossless.options.lossless = true;
    let id = f.engine.register(&f.guest(), &[lossless]).unwrap()[0].id;
    assert_eq!(f.optimize(), 1);
    f.info(id)
}

/// A vCPU at the int3 of detour 0, and the address at which it goes on without a record.
fn waiting(f: &Fixture, probe: &ProbeInfo) -> (TestVcpu, u64) {
    let site = f.engine.table().site(probe.address).cloned().unwrap();
    let detour = &site.jump().unwrap().detour;
    let full = detour.full.unwrap();
    let mut vcpu = vcpu_at(0);
    vcpu.registers.rip = detour.at.0 + u64::from(full.trap);
    (vcpu, detour.at.0 + u64::from(full.gives_up))
}

#[test]
fn a_vcpu_whose_ring_is_held_up_does_not_wait_for_the_others_records() {
    let f = jumps();
    let probe = lossless(&f);
    let (vcpu, gives_up) = waiting(&f, &probe);
    // No ring is held up, so there is room now.
    let mut first = vcpu.clone();
    assert_eq!(f.trap(&mut first), Action::Resume);
    assert_eq!(first.registers.rip, vcpu.registers.rip + 1);
    // The second vCPU was interrupted in the middle of a record. The first one goes on writing.
    reserve(&f, 1, true);
    put_record(&f, 0);
    let mut second = vcpu.clone();
    second.id = VcpuId(1);
    assert_eq!(f.trap(&mut second), Action::Resume);
    assert_eq!(second.registers.rip, gives_up);
    assert_eq!(f.hit_count(probe.id), 1);
}

#[test]
fn the_int3_of_a_lossless_detour_is_answered_after_its_jump_has_gone() {
    let f = jumps();
    let probe = lossless(&f);
    let (mut vcpu, _) = waiting(&f, &probe);
    f.unregister(&[probe.id]);
    assert!(f.engine.debugging().breakpoints);
    let trap = vcpu.registers.rip;
    assert_eq!(f.trap(&mut vcpu), Action::Resume);
    assert_eq!(vcpu.registers.rip, trap + 1);
    // When no vCPU can be there any more, the guest's own int3s cost no exits.
    f.engine.reclaim(&f.guest());
    assert!(!f.engine.debugging().breakpoints);
}

/// Where the code of the detour at `framed` is.
fn code(f: &Fixture) -> u64 {
    let table = f.engine.table();
    let site = table.site(GuestVirtAddr(TEXT + FRAMED)).unwrap();
    site.jump().unwrap().detour.at.0
}

/// A jump whose ring is held up by an unfinished record, with two finished ones behind it.
fn held_up(begun: bool) -> (Fixture, ProbeInfo) {
    let f = jumps();
    let probe = jump(&f, "framed");
    reserve(&f, 0, begun);
    put_record(&f, 0);
    put_record(&f, 0);
    for _ in 0..1023 {
        f.engine.drain(&*f.memory);
        assert!(!f.engine.is_held_up());
    }
    f.engine.drain(&*f.memory);
    assert!(f.engine.is_held_up());
    assert_eq!(f.hit_count(probe.id), 0);
    (f, probe)
}

#[test]
fn a_ring_goes_on_without_a_record_whose_writer_has_died() {
    for begun in [false, true] {
        let (f, probe) = held_up(begun);
        let lost = f.engine.recover_rings(&f.guest()).unwrap();
        assert_eq!(lost, usize::from(begun));
        let info = f.info(probe.id);
        assert_eq!((info.hits, info.missed), (2, u64::from(begun)));
        let (head, tail) = (block(&f, 0) + layout::HEAD, block(&f, 0) + layout::TAIL);
        assert_eq!(f.word(tail), f.word(head), "all space is given back");
        put_record(&f, 0);
        f.engine.drain(&*f.memory);
        assert_eq!(f.hit_count(probe.id), 3);
        assert!(!f.engine.is_held_up());
    }
}

#[test]
fn a_record_whose_writer_may_be_alive_is_waited_for() {
    type Where = fn(&Fixture, &mut TestVcpu, u64);
    let places: [(&str, Where); 2] = [
        ("on a vCPU", |_, vcpu, rip| vcpu.registers.rip = rip),
        ("preempted", |f, _, rip| f.set_word(STACK - 0x40, rip)),
    ];
    for (name, put) in places {
        for begun in [false, true] {
            let (f, probe) = held_up(begun);
            let mut vcpu = vcpu_at(0);
            put(&f, &mut vcpu, code(&f) + 20);
            let lost = f.engine.recover_rings(&f.guest_with(&vcpu)).unwrap();
            assert_eq!(lost, 0, "{name}");
            let info = f.info(probe.id);
            // The finished records behind it are read at a stop.
            assert_eq!((info.hits, info.missed), (2, 0), "{name}");
            let tail = f.word(block(&f, 0) + layout::TAIL);
            assert_eq!(tail, 0, "{name}: its space stays its own");
            assert!(!f.engine.is_held_up(), "{name}: not so soon again");
        }
    }
}

#[test]
fn records_that_are_unfinished_when_the_guest_ends_count_as_missed() {
    let f = jumps();
    let probe = jump(&f, "framed");
    reserve(&f, 0, true);
    put_record(&f, 0);
    f.engine.drain_ended(&*f.memory);
    let info = f.info(probe.id);
    assert_eq!((info.hits, info.missed, f.events().len()), (1, 1, 1));
}

/// Registers a probe with the condition that RDI is `value`, and makes it a jump.
fn conditional(f: &Fixture, value: u64) -> ProbeId {
    let mut wanted = spec("framed");
    wanted.options.condition = vec![Comparison {
        operand: Operand::Register { number: 7, size: 8 },
        relation: Relation::Equal,
        constant: value,
        signed: false,
    }];
    let id = f.engine.register(&f.guest(), &[wanted]).unwrap()[0].id;
    while f.engine.has_waiting() {
        let prepared = f.engine.prepare_jumps(&*f.memory);
        if prepared.is_empty() {
            break;
        }
        f.engine.commit_jumps(&f.guest(), &prepared).unwrap();
    }
    id
}

#[test]
fn detours_of_removed_probes_are_given_to_others_when_nobody_can_be_in_them() {
    let f = Fixture::with_few_counters();
    conditional(&f, 0);
    f.unregister(&[ProbeId(1)]);
    let cells = u64::from(f.engine.reader.cells());
    assert!(cells < 1100, "{cells}");
    // A task was preempted in the detour of the third one.
    let mut kept = 0;
    for value in 1..cells + 200 {
        let id = conditional(&f, value);
        let info = f.info(id);
        assert_eq!(info.optimization, Optimization::Optimized, "{value}");
        if value == 3 {
            kept = code(&f);
            f.set_word(STACK - 0x40, kept + 30);
        }
        let site = f.engine.table().site(info.address).cloned().unwrap();
        let number = site.jump().unwrap().number;
        assert!(u64::from(number) < cells);
        if value != 3 {
            assert_ne!(site.jump().unwrap().detour.at.0, kept);
        }
        // Counts of the number's former detour don't become the new one's.
        assert_eq!((info.hits, info.missed), (0, 0), "{value}");
        let cell = block(&f, 0) + layout::CELLS + u64::from(number) * layout::CELL;
        let count = f.word(cell) as u32 + 1;
        f.set_word(cell, f.word(cell) & !0xffff_ffff | u64::from(count));
        let removed = f.engine.unregister(&f.guest(), &[id]).unwrap();
        assert_eq!(removed[0].missed, 1, "{value}");
    }
    assert_eq!(f.engine.arena.detour_at(GuestVirtAddr(kept + 30)), Some(3));
}
