//! Calls that jumps follow when their probes are removed, and other values at their return addresses.

use guest_state::x86_64::NOP5;
use guest_state::{GuestMemory, GuestPhysAddr};

use super::ended::ON_NMI_STACK;
use super::fixture::{Fixture, STACK, TEXT, vcpu_at};
use super::followed::{CALLER, at, count, enter, followed, keys, put_return, tally};
use super::jumps::jumps;
use crate::arena::TRAMPOLINE;
use crate::calls::layout as table;
use crate::detour;
use crate::probe::ProbeId;

#[test]
fn removal_puts_the_return_addresses_of_calls_under_way_back() {
    let f = jumps();
    let probe = followed(&f, |_| {});
    enter(&f, 0, STACK, CALLER, 0);
    enter(&f, 1, STACK + 0x40, CALLER + 1, 0);
    // Another tool has replaced our return address with its own.
    enter(&f, 2, STACK + 0x80, CALLER + 2, 0);
    f.set_word(STACK + 0x80, 7);
    count(&f, table::ACTIVE, 3);
    f.unregister(&[probe.id]);
    let words = [0, 0x40, 0x80].map(|offset| f.word(STACK + offset));
    assert_eq!(words, [CALLER, CALLER + 1, 7]);
    assert_eq!(keys(&f), [STACK + 0x80]);
    // A call that may still return is led back, and doesn't count against the limit.
    assert_eq!(f.word(at(&f, table::TALLIES + table::ACTIVE)) as u32, 0);
    // Its late record belongs to no probe.
    put_return(&f);
    f.engine.drain_all(&*f.memory);
    assert!(f.events().is_empty());
}

#[test]
fn a_call_in_the_middle_of_our_code_is_left_to_it() {
    let f = jumps();
    let probe = followed(&f, |_| {});
    enter(&f, 0, STACK, CALLER, 0);
    let mut vcpu = vcpu_at(0);
    (vcpu.registers.rip, vcpu.registers.rsp) = (TRAMPOLINE.0, STACK + 8);
    let guest = f.guest_with(&vcpu);
    f.engine.unregister(&guest, &[probe.id]).unwrap();
    assert_eq!((f.word(STACK), keys(&f)), (TRAMPOLINE.0, vec![STACK]));

    // Interrupted before the trampoline's first instruction: RIP and RSP are in the interrupt's frame.
    let f = jumps();
    let probe = followed(&f, |_| {});
    enter(&f, 0, STACK, CALLER, 0);
    f.set_word(STACK - 40, TRAMPOLINE.0);
    f.set_word(STACK - 16, STACK + 8);
    f.unregister(&[probe.id]);
    assert_eq!((f.word(STACK), keys(&f)), (TRAMPOLINE.0, vec![STACK]));
}

/// Words below a call's return address at [`STACK`] that show that a tool of the guest's is about to replace that
/// address too: the distance, and the word.
pub const TAKING: &[(u64, u64)] = &[
    // The tool was called by an ftrace site of the kernel's, or by one of a module's whose call has become a nop again.
    (8, TEXT + 0x204 + NOP5.len() as u64),
    (8, MODULE + NOP5.len() as u64),
    // RSP in the frame of an int3, with the stack aligned to 16 bytes or not, and in the frame of an optimized kprobe.
    (16, STACK),
    (24, STACK),
    (16, STACK - 8),
];
const MODULE: u64 = 0x9000;

pub fn load_traced_module(f: &Fixture) {
    f.memory.write(GuestPhysAddr(MODULE), &NOP5).unwrap();
}

#[test]
fn a_return_address_stays_while_a_tool_of_the_guest_s_may_be_taking_it() {
    for (below, word) in TAKING {
        let f = jumps();
        let probe = followed(&f, |_| {});
        load_traced_module(&f);
        enter(&f, 0, STACK, CALLER, 0);
        f.set_word(STACK - below, *word);
        let mut vcpu = vcpu_at(0);
        vcpu.registers.rsp = STACK + 0x4000;
        f.engine
            .unregister(&f.guest_with(&vcpu), &[probe.id])
            .unwrap();
        assert_eq!(
            (f.word(STACK), keys(&f)),
            (TRAMPOLINE.0, vec![STACK]),
            "{below} {word:#x}"
        );
        // The engine doesn't wait for a word that may be a leftover.
        assert!(f.engine.prepare_jumps(&*f.memory).is_empty());
        // The next change finds that no tool has replaced it.
        f.set_word(STACK - below, 0);
        let other = f.probe("plain");
        f.unregister(&[other.id]);
        assert_eq!((f.word(STACK), keys(&f)), (CALLER, vec![]));
    }
}

#[test]
fn a_return_address_is_put_back_soon_if_its_task_is_running() {
    let (below, word) = TAKING[0];
    let f = jumps();
    let probe = followed(&f, |_| {});
    enter(&f, 0, STACK, CALLER, 0);
    f.set_word(STACK - below, word);
    let mut vcpu = vcpu_at(0);
    vcpu.registers.rsp = STACK - 0x100;
    let guest = f.guest_with(&vcpu);
    f.engine.unregister(&guest, &[probe.id]).unwrap();
    assert_eq!((f.word(STACK), keys(&f)), (TRAMPOLINE.0, vec![STACK]));
    assert!(f.engine.has_waiting());
    f.set_word(STACK - below, 0);
    f.optimize();
    assert_eq!((f.word(STACK), keys(&f)), (CALLER, vec![]));
}

#[test]
fn a_return_address_stays_while_another_call_is_about_to_take_it() {
    let f = jumps();
    let probe = followed(&f, |_| {});
    enter(&f, 0, STACK, CALLER, 0);
    let key = at(&f, table::bucket(STACK) * table::WAYS * 8 + 8);
    f.set_word(key, STACK | table::UNFINISHED);
    f.unregister(&[probe.id]);
    assert_eq!((f.word(STACK), keys(&f)), (TRAMPOLINE.0, vec![STACK]));
    f.set_word(key, 0);
    f.optimize();
    assert_eq!((f.word(STACK), keys(&f)), (CALLER, vec![]));
}

#[test]
fn of_two_calls_with_one_return_address_either_may_go_first() {
    for outer_goes in [true, false] {
        let f = jumps();
        let ids = ["framed%return", "plain%return"].map(|place| f.probe(place).id);
        f.optimize();
        // One function has jumped to the other.
        let [outer, inner] = [ids[0], ids[1]].map(|id| {
            let table = f.engine.table();
            let site = table.site(f.info(id).address).unwrap();
            u64::from(site.jump().unwrap().number)
        });
        enter(&f, 0, STACK, CALLER, outer);
        enter(&f, 1, STACK, TRAMPOLINE.0, inner);
        let (gone, left) = if outer_goes { (0, 1) } else { (1, 0) };
        f.unregister(&[ids[gone]]);
        assert_eq!((f.word(STACK), keys(&f)), (TRAMPOLINE.0, vec![STACK]));
        let call = at(&f, table::CALLS + left as u64 * table::CALL_LEN);
        assert_eq!(f.word(call + table::CALLER), CALLER, "{outer_goes}");
        f.unregister(&[ids[left]]);
        assert_eq!((f.word(STACK), keys(&f)), (CALLER, vec![]));
    }
}

/// Where a tool of the guest's makes its calls return to.
const TOOL: u64 = CALLER + 0x80;

/// The ids of two probes, and the numbers of their detours. A call goes from one function to the other.
fn two(f: &Fixture) -> ([ProbeId; 2], [u64; 2]) {
    let ids = ["framed%return", "plain%return"].map(|place| f.probe(place).id);
    f.optimize();
    let numbers = ids.map(|id| {
        let table = f.engine.table();
        let site = table.site(f.info(id).address).unwrap();
        u64::from(site.jump().unwrap().number)
    });
    (ids, numbers)
}

#[test]
fn a_call_whose_address_a_tool_of_the_guest_has_taken_stays_in_the_table_after_its_probe() {
    for (gone, word, left, active) in [
        (&[0, 1][..], TOOL, 1, [0, 0]),
        (&[0], TRAMPOLINE.0, 2, [0, 1]),
        (&[1], TOOL, 1, [1, 0]),
    ] {
        let f = jumps();
        let (ids, numbers) = two(&f);
        enter(&f, 0, STACK, CALLER, numbers[0]);
        enter(&f, 1, STACK, TOOL, numbers[1]);
        f.set_word(at(&f, table::CALLS + table::CALL_LEN + table::LEVEL), 1);
        for number in numbers {
            let at = GuestPhysAddr(at(&f, tally(number) + table::ACTIVE));
            f.memory.write(at, &1_u32.to_le_bytes()).unwrap();
        }
        let gone: Vec<_> = gone.iter().map(|index| ids[*index]).collect();
        f.unregister(&gone);
        assert_eq!((f.word(STACK), keys(&f).len()), (word, left));
        let now = numbers.map(|number| f.word(at(&f, tally(number) + table::ACTIVE)) as u32);
        assert_eq!(now, active);
        let call = at(&f, table::CALLS);
        assert_eq!(f.word(call + table::CALLER), CALLER);
        let orphan = f.word(call + table::WORD) as u32 & table::ORPHAN != 0;
        assert_eq!(orphan, active[0] == 0);
    }
}

#[test]
fn a_call_that_the_trampoline_is_at_work_on_is_left_to_it() {
    let f = jumps();
    let probe = followed(&f, |_| {});
    enter(&f, 0, STACK, CALLER, u64::from(table::RETURNS));
    count(&f, table::ACTIVE, 1);
    f.unregister(&[probe.id]);
    assert_eq!((f.word(STACK), keys(&f)), (TRAMPOLINE.0, vec![STACK]));
    assert_eq!(f.word(at(&f, tally(0) + table::ACTIVE)) as u32, 1);
}

#[test]
fn a_call_that_the_trampoline_has_told_of_is_not_missed_when_its_probe_goes() {
    let shared = |f: &Fixture| {
        let environment = f.engine.environment(&*f.memory).unwrap();
        detour::trampoline(&environment).unwrap()
    };
    // Elsewhere in the trampoline, or elsewhere on the stack, the return isn't recorded yet.
    for (place, off, missed) in [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 0),
        (4, 0, 1),
        (2, 8, 1),
    ] {
        for interrupted in [false, true] {
            let f = jumps();
            let probe = followed(&f, |_| {});
            enter(&f, 0, STACK, CALLER, u64::from(table::RETURNS));
            let shared = shared(&f);
            let rip = shared.told.get(place).map_or(64, |at| u64::from(*at));
            let (rip, rsp) = (TRAMPOLINE.0 + rip, STACK - shared.depth + off);
            let mut vcpu = vcpu_at(0);
            if interrupted {
                let frame = (rsp & !15) - 40;
                f.set_word(frame, rip);
                f.set_word(frame + 24, rsp);
            } else {
                (vcpu.registers.rip, vcpu.registers.rsp) = (rip, rsp);
            }
            let guest = f.guest_with(&vcpu);
            let removed = f.engine.unregister(&guest, &[probe.id]).unwrap();
            assert_eq!(removed[0].missed, missed, "{place} {off} {interrupted}");
        }
    }
}

#[test]
fn calls_that_a_detour_has_not_finished_or_an_nmi_may_have_interrupted_are_put_back_later() {
    for begins in [true, false] {
        let f = jumps();
        let probe = followed(&f, |_| {});
        let word = if begins { table::BEGINS } else { 0 };
        enter(&f, 0, STACK, CALLER, word.into());
        count(&f, table::ACTIVE, 1);
        let mut vcpu = vcpu_at(0);
        if !begins {
            vcpu.registers.rsp = ON_NMI_STACK;
        }
        f.engine
            .unregister(&f.guest_with(&vcpu), &[probe.id])
            .unwrap();
        assert_eq!((f.word(STACK), keys(&f)), (TRAMPOLINE.0, vec![STACK]));
        assert_eq!(f.word(at(&f, tally(0) + table::ACTIVE)) as u32, 0);
        assert!(f.engine.has_waiting());
        let word = GuestPhysAddr(at(&f, table::CALLS + table::WORD));
        f.memory.write(word, &table::ORPHAN.to_le_bytes()).unwrap();
        f.optimize();
        assert_eq!((f.word(STACK), keys(&f)), (CALLER, vec![]));
    }
}
