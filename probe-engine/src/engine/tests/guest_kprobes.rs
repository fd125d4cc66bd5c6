//! The guest's own kprobes beside ours.

use std::sync::Arc;

use guest_kernel::kprobes::synthetic::{DISABLED, Kprobe, hold, reader};
use guest_state::{Action, GuestMemory, GuestPhysAddr, GuestVirtAddr};

use super::fixture::{Fixture, KPROBES, PHYS, TEXT, vcpu_at};
use crate::probe::{Optimization, ProbeId, ProbeState, Switch};

/// `push %rbp; mov %rsp,%rbp; push %rbx; sub $8,%rsp; pop %rbx; ret`
const FRAMED: u64 = 0x340;
const BEFORE: [u8; 10] = [0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x83, 0xec, 0x08, 0x5b];
const JUMP: u8 = 0xe9;
/// Where the guest's kprobes are.
const OWN: u64 = 0xb000;
const MUTEX: u64 = PHYS + KPROBES + 0x200;
const HANDLER: GuestVirtAddr = GuestVirtAddr(TEXT + KPROBES + 0x220);
/// Where the guest's jumps lead.
const BUFFER: u64 = TEXT + 0x10_0000;

fn guest() -> Fixture {
    Fixture::with_jumps(|kernel| kernel.kprobes = Some(reader(&kernel.symbols)))
}

/// A kprobe of the guest's, not armed, on the instruction at an offset of the text.
pub fn kprobe(f: &Fixture, offset: u64) -> Kprobe<'_> {
    let kprobe = Kprobe {
        memory: &*f.memory,
        own: OWN,
    };
    let at = GuestVirtAddr(TEXT + offset);
    kprobe.on(at, f.byte(offset)).flags(DISABLED);
    kprobe.link(PHYS + KPROBES, 3);
    kprobe
}

/// Removes all kprobes.
fn remove_all(f: &Fixture) {
    let table = GuestPhysAddr(PHYS + KPROBES);
    f.memory.write(table, &[0; 512]).unwrap();
}

/// Makes the guest's kernel turn its kprobe into a jump, or prepare that. The jump's buffer has a
/// copy of 5 bytes.
fn optimize(f: &Fixture, kprobe: &Kprobe<'_>, offset: u64, now: bool) {
    let copied = f.bytes_at(PHYS + offset + 1, 4).try_into().unwrap();
    kprobe.flags(0).jump(HANDLER, BUFFER, 5, copied);
    if now {
        let by = (BUFFER - (TEXT + offset + 5)) as u32;
        f.set_bytes(offset, &[JUMP]);
        f.set_bytes(offset + 1, &by.to_le_bytes());
    }
}

fn why_not(f: &Fixture, id: ProbeId) -> &'static str {
    match f.info(id).optimization {
        Optimization::Not(why) => why.kind(),
        other => panic!("{other:?}"),
    }
}

fn is_refused(f: &Fixture, place: &str, how: &str) {
    let message = f.refusal(place).to_string();
    assert!(
        message.contains("kprobe of its own") && message.contains(how),
        "{message}"
    );
}

#[test]
fn an_instruction_with_a_kprobe_of_the_guest_s_is_refused_armed_or_not() {
    let f = guest();
    kprobe(&f, FRAMED);
    is_refused(&f, "framed", "on the same instruction");
    f.set_bytes(FRAMED, &[0xcc]);
    is_refused(&f, "framed", "on the same instruction");
    // The bytes under the kprobe's int3 are known, so the instructions behind it can be probed.
    assert_eq!(f.probe("framed+0x1").instruction, "mov %rsp,%rbp");
    remove_all(&f);
    f.set_bytes(FRAMED, &[0x55]);
    f.probe("framed");
}

#[test]
fn no_jump_overwrites_a_kprobe_of_the_guest_s_until_it_is_gone() {
    for armed in [false, true] {
        let f = guest();
        kprobe(&f, FRAMED + 4);
        if armed {
            f.set_bytes(FRAMED + 4, &[0xcc]);
        }
        let probe = f.probe("framed").id;
        assert_eq!(f.optimize(), 0);
        assert_eq!(why_not(&f, probe), "guest kprobe", "armed: {armed}");
        assert!(f.engine.has_waiting(), "it is looked at again");
        assert_eq!(f.optimize(), 0);
        remove_all(&f);
        f.set_bytes(FRAMED + 4, &[0x53]);
        assert_eq!(f.optimize(), 1, "armed: {armed}");
        assert_eq!(f.byte(FRAMED), JUMP);
    }
}

#[test]
fn a_kprobe_that_comes_between_preparing_and_stopping_is_seen() {
    let f = guest();
    let probe = f.probe("framed").id;
    let prepared = f.engine.prepare_jumps(&*f.memory);
    kprobe(&f, FRAMED + 4);
    assert_eq!(f.engine.commit_jumps(&f.guest(), &prepared).unwrap(), 0);
    assert_eq!(f.bytes_at(PHYS + FRAMED + 1, 4), BEFORE[1..5]);
    assert_eq!(why_not(&f, probe), "guest kprobe");
}

#[test]
fn jumps_beside_a_kprobe_of_the_guest_s_are_planned_before_it_stops() {
    let f = guest();
    kprobe(&f, FRAMED + 5);
    f.probe("framed");
    let prepared = f.engine.prepare_jumps(&*f.memory);
    let (planned, kprobes) = prepared.planned.as_ref().unwrap();
    assert!(!kprobes.is_empty());
    assert_eq!(f.engine.commit_jumps(&f.guest(), &prepared).unwrap(), 1);
    assert!(Arc::ptr_eq(&planned.plan.after.table, &f.engine.table()));
}

#[test]
fn an_int3_of_the_guest_s_that_goes_lets_a_jump_come() {
    let f = guest();
    f.set_bytes(FRAMED + 4, &[0xcc]);
    let probe = f.probe("framed").id;
    f.optimize();
    assert_eq!(why_not(&f, probe), "guest int3");
    f.set_bytes(FRAMED + 4, &[0x53]);
    assert_eq!(f.optimize(), 1);
}

#[test]
fn a_jump_of_the_guest_s_is_no_jump_of_the_function_s() {
    for now in [true, false] {
        let f = guest();
        let own = kprobe(&f, FRAMED);
        optimize(&f, &own, FRAMED, now);
        is_refused(&f, "framed", "on the same instruction");
        for inside in ["framed+0x1", "framed+0x4"] {
            is_refused(&f, inside, "has copied this instruction");
        }
        let behind = f.probe("framed+0x5");
        assert_eq!(behind.instruction, "sub $8,%rsp");
        assert_eq!(f.optimize(), 1, "one behind it may be a jump");
        f.unregister(&[behind.id]);
        assert_eq!(f.bytes_at(PHYS + FRAMED + 5, 5), BEFORE[5..]);
    }
}

#[test]
fn nothing_is_registered_while_the_guest_changes_its_kprobes() {
    let f = guest();
    hold(&*f.memory, MUTEX, OWN, 0);
    let message = f.refusal("framed").to_string();
    assert!(message.contains("try again"), "{message}");
    assert_eq!(f.byte(FRAMED), 0x55);
    f.probe("table/8");
    hold(&*f.memory, MUTEX, 0, 0);
    f.probe("framed");
}

#[test]
fn jumps_wait_while_the_guest_changes_its_kprobes_but_not_for_ever() {
    let f = guest();
    let probe = f.probe("framed").id;
    hold(&*f.memory, MUTEX, OWN, 0);
    assert_eq!(f.optimize(), 0);
    assert_eq!(f.info(probe).optimization, Optimization::Waiting);
    let looks = (0..1000).take_while(|_| {
        f.optimize();
        f.info(probe).optimization == Optimization::Waiting
    });
    assert!(looks.count() < 999);
    assert_eq!(why_not(&f, probe), "guest kprobe");
    hold(&*f.memory, MUTEX, 0, 0);
    assert_eq!(f.optimize(), 1);
}

#[test]
fn enabling_and_arming_is_refused_where_the_guest_has_a_kprobe_by_now() {
    let f = guest();
    let probe = f.probe("framed").id;
    f.enable(probe, false);
    kprobe(&f, FRAMED);
    let error = f
        .engine
        .switch(&f.guest(), Some(&[probe]), Switch::Enabled(true))
        .unwrap_err();
    assert!(error.to_string().contains("on the same instruction"));
    assert_eq!(f.info(probe).state, ProbeState::Disabled);
    assert_eq!(f.byte(FRAMED), 0x55);
    remove_all(&f);
    f.enable(probe, true);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(false))
        .unwrap();
    kprobe(&f, FRAMED);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap_err();
    assert!(f.engine.is_disarmed());
    assert_eq!(f.byte(FRAMED), 0x55);
    remove_all(&f);
    f.engine
        .switch(&f.guest(), None, Switch::Enabled(true))
        .unwrap();
    assert_eq!(f.byte(FRAMED), 0xcc);
}

#[test]
fn a_jump_stays_as_long_as_a_kprobe_of_the_guest_s_has_its_first_byte() {
    let f = guest();
    let probe = f.probe("framed").id;
    f.optimize();
    let ours = f.bytes_at(PHYS + FRAMED, 5);
    // The kprobe is registered but not armed: the text doesn't show it.
    kprobe(&f, FRAMED);
    f.unregister(&[probe]);
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), ours);
    f.optimize();
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), ours);
    is_refused(&f, "framed", "on the same instruction");
    is_refused(&f, "framed+0x4", "over this instruction");
    // The kprobe is armed and disarmed.
    f.set_bytes(FRAMED, &[0xcc]);
    assert_eq!(f.trap(&mut vcpu_at(FRAMED)), Action::Reinject);
    assert_eq!(f.probe("framed+0x5").instruction, "sub $8,%rsp");
    f.set_bytes(FRAMED, &[JUMP]);
    f.optimize();
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), ours);
    remove_all(&f);
    f.optimize();
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), BEFORE[..5]);
}

#[test]
fn a_jump_stays_while_the_guest_may_be_reading_it() {
    let f = guest();
    let probe = f.probe("framed").id;
    f.optimize();
    hold(&*f.memory, MUTEX, OWN, 0);
    f.unregister(&[probe]);
    assert_eq!(f.byte(FRAMED), JUMP);
    hold(&*f.memory, MUTEX, 0, 0);
    f.optimize();
    assert_eq!(f.bytes_at(PHYS + FRAMED, 5), BEFORE[..5]);
}
