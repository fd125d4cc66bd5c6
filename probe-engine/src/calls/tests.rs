use guest_state::testing::TestMemory;
use guest_state::{GuestMemory, GuestPhysAddr};

use super::layout::{
    ACTIVE, BUCKETS, CALL_LEN, CALLER, CALLS, COUNTED, ENDED, MISSED, ORPHAN, TALLIES, TALLY_LEN,
    WAYS, WORD,
};
use super::*;

const START: u64 = 0x1000;

fn put(memory: &TestMemory, at: u64, word: u64) {
    let at = GuestPhysAddr(START + at);
    memory.write(at, &word.to_le_bytes()).unwrap();
}

/// Memory with two calls of detour 3 in it, the last one in the last place.
fn two() -> (TestMemory, Calls) {
    let memory = TestMemory::new((START + layout::WINDOW) as usize);
    let calls = Calls::new(GuestPhysAddr(START));
    let last = BUCKETS * WAYS - 1;
    for (index, slot, caller) in [(5, 0x7000, 0x100), (last, 0x8000, 0x200)] {
        put(&memory, index * 8, slot);
        put(&memory, CALLS + index * CALL_LEN + CALLER, caller);
        put(&memory, CALLS + index * CALL_LEN + WORD, 3 | 1 << 31);
    }
    let tally = TALLIES + 3 * TALLY_LEN;
    put(&memory, tally + ACTIVE, 2 | 7 << (8 * MISSED));
    put(&memory, tally + COUNTED, 9 | 4 << (8 * (ENDED - COUNTED)));
    (memory, calls)
}

#[test]
fn calls_of_some_detours_are_told_from_others() {
    let (memory, calls) = two();
    put(&memory, CALLS + 5 * CALL_LEN + WORD, 4 | 1 << 31);
    let of = |wanted: u32| {
        let found = calls.under_way_of(&memory, |number| number == wanted);
        let found = found.unwrap().into_iter();
        found.map(|call| call.slot).collect::<Vec<_>>()
    };
    assert_eq!((of(3), of(4), of(5)), (vec![0x8000], vec![0x7000], vec![]));
}

#[test]
fn calls_under_way_are_found_and_taken_out() {
    let (memory, calls) = two();
    let found = calls.under_way(&memory).unwrap();
    let told: Vec<_> = found
        .iter()
        .map(|call| (call.slot, call.caller, call.number))
        .collect();
    assert_eq!(told, [(0x7000, 0x100, 3), (0x8000, 0x200, 3)]);
    calls.set_caller(&memory, &found[1], 0x300).unwrap();
    calls.remove(&memory, &found[0]).unwrap();
    let left = calls.under_way(&memory).unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].slot, left[0].caller), (0x8000, 0x300));
    let active = calls.tallies(&memory, 4).unwrap()[3].active;
    assert_eq!(active, 1);
}

#[test]
fn tallies_are_read_by_number() {
    let (memory, calls) = two();
    let tallies = calls.tallies(&memory, 5).unwrap();
    let expected = Tally {
        active: 2,
        missed: 7,
        counted: 9,
        ended: 4,
    };
    assert_eq!(tallies[3], expected);
    assert_eq!((tallies.len(), tallies[4]), (5, Tally::default()));
    calls.init(&memory).unwrap();
    assert_eq!(calls.tallies(&memory, 4).unwrap()[3], Tally::default());
    assert_eq!(calls.under_way(&memory).unwrap(), []);
}

#[test]
fn a_call_that_ends_is_counted_unless_nobody_follows_it_any_more() {
    let (memory, calls) = two();
    let before = calls.tallies(&memory, 4).unwrap()[3];
    let found = calls.under_way(&memory).unwrap();
    calls.end(&memory, &found[0]).unwrap();
    let word = u64::from(3 | ORPHAN);
    put(
        &memory,
        CALLS + (BUCKETS * WAYS - 1) * CALL_LEN + WORD,
        word,
    );
    let found = calls.under_way(&memory).unwrap();
    assert_eq!(found.len(), 1);
    calls.end(&memory, &found[0]).unwrap();
    assert_eq!(calls.under_way(&memory).unwrap(), []);
    let new = calls.tallies(&memory, 4).unwrap()[3].since(&before);
    assert_eq!((new.active, new.missed), (1, 0));
    assert_eq!((new.counted, new.ended), (0, 1));
}

#[test]
fn counts_between_two_looks_may_wrap_around() {
    let before = Tally {
        missed: u32::MAX,
        ended: u32::MAX - 1,
        ..Tally::default()
    };
    let now = Tally {
        active: 7,
        missed: 1,
        ..before
    };
    let expected = Tally {
        active: 7,
        missed: 2,
        ..Tally::default()
    };
    assert_eq!(now.since(&before), expected);
}

#[test]
fn buckets_are_all_in_the_table_and_neighbours_apart() {
    let stacks = (0..1000).map(|task| layout::bucket(0xffff_c900_0000_3e58 + task * 0x8000));
    let mut found: Vec<_> = stacks.collect();
    assert!(found.iter().all(|bucket| *bucket < BUCKETS));
    found.sort_unstable();
    found.dedup();
    assert!(found.len() > 800, "{}", found.len());
}
