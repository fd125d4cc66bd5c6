use std::collections::BTreeSet;
use std::convert::Infallible;

use super::*;
use crate::detour::{Detour, Pattern};

/// Room for detours below the slots.
const WITH_DETOURS: ArenaMemory = ArenaMemory {
    code: PhysRange {
        start: GuestPhysAddr(0x100_0000),
        len: 0x100_0000,
    },
    ..REGION
};

pub(super) fn guest_with_detours() -> (Guest, Arena) {
    let guest = Guest {
        memory: TestMemory::new(0x200_0000),
        ..Guest::new()
    };
    guest.put(ROOT + 511 * 8, TABLE_PHYS | 0x63);
    guest.put(TABLE_PHYS + 510 * 8, 0x5000 | 0x63);
    guest.put(TABLE_PHYS + 511 * 8, 0x6000 | 0x67);
    let arena = guest.install(WITH_DETOURS).unwrap();
    (guest, arena)
}

/// Any number, and none is busy.
pub(super) const ANY: (u32, &BTreeSet<u32>) = (u32::MAX, &BTreeSet::new());

/// What a detour at `at` is: its own number and address, and `more`.
fn detour(number: u32, at: GuestVirtAddr, more: &[u8]) -> Detour {
    let mut code = number.to_le_bytes().to_vec();
    code.extend(at.0.to_le_bytes());
    code.extend(more);
    Detour {
        at,
        code,
        copies: vec![(0, 8), (3, 20)],
        behind: (7, 30),
        full: None,
    }
}

fn place(
    guest: &Guest,
    arena: &mut Arena,
    at: u64,
    more: &[u8],
) -> Result<Placed, PlaceError<Infallible>> {
    let build = |number, place| Ok(detour(number, place, more));
    let at = GuestVirtAddr(at);
    arena.detour(&guest.memory, at, Pattern::default(), ANY, build)
}

#[test]
fn a_detour_is_code_between_int3s_that_the_jump_leads_to() {
    let (guest, mut arena) = guest_with_detours();
    let first = place(&guest, &mut arena, IMAGE, &[1; 100]).unwrap();
    let second = place(&guest, &mut arena, IMAGE + 8, &[2; 10]).unwrap();
    assert_eq!((first.number, second.number), (0, 1));
    for placed in [&first, &second] {
        assert_eq!(placed.detour.at, placed.target);
        let at = guest.code(placed.target, placed.detour.code.len());
        assert_eq!(at, placed.detour.code);
    }
    let by = i32::from_le_bytes(first.jump[1..].try_into().unwrap());
    assert_eq!(first.jump[0], 0xe9);
    assert_eq!(
        (IMAGE + 5).wrapping_add_signed(i64::from(by)),
        first.target.0
    );
    let end = second.target.wrapping_add(second.detour.code.len() as u64);
    assert_eq!(guest.code(end, 100), [0xcc; 100]);
    assert_eq!(arena.detours(), (2, 1));
}

#[test]
fn a_pattern_without_room_for_the_code_gets_a_jump_to_it() {
    let (guest, mut arena) = guest_with_detours();
    let pattern = Pattern::at([1, 2, 3]);
    let at = GuestVirtAddr(IMAGE);
    let build = |number, place| Ok::<_, Infallible>(detour(number, place, &[7; 40]));
    let single = arena.detour(&guest.memory, at, pattern, ANY, build);
    // One address in each 16 MiB: none in these 8, or one.
    let area = GuestVirtAddr(HOLE.end.0 - 0x100_0000)..SLOT_AREA.start;
    let windows = pattern.windows(at, area).count();
    assert_eq!(single.is_ok(), windows == 1);
}

#[test]
fn the_same_detour_is_found_again_and_another_is_another() {
    let (guest, mut arena) = guest_with_detours();
    let first = place(&guest, &mut arena, IMAGE, &[1]).unwrap();
    assert_eq!(
        place(&guest, &mut arena, IMAGE, &[1]).as_ref(),
        Ok(&first),
        "while it is in use"
    );
    let (number, target) = (first.number, first.target);
    drop(first);
    let other = place(&guest, &mut arena, IMAGE, &[2]).unwrap();
    assert_ne!(other.number, number);
    let first = place(&guest, &mut arena, IMAGE, &[1]).unwrap();
    assert_eq!((first.number, first.target), (number, target));
    arena.discard(&(GuestVirtAddr(IMAGE)..GuestVirtAddr(IMAGE + 1)));
    let anew = place(&guest, &mut arena, IMAGE, &[1]).unwrap();
    assert_ne!(anew.number, first.number);
}

#[test]
fn an_address_tells_its_detour() {
    let (guest, mut arena) = guest_with_detours();
    let placed = place(&guest, &mut arena, IMAGE, &[1; 20]).unwrap();
    let at = |by: u64| arena.detour_at(placed.target.wrapping_add(by));
    let inside = |offset, original: Option<u64>| InDetour {
        number: placed.number,
        at: GuestVirtAddr(IMAGE),
        offset,
        original: original.map(|by| GuestVirtAddr(IMAGE + by)),
        has_pushed: [19, 29].contains(&offset),
    };
    for (offset, original) in [
        (0, None),
        (7, None),
        (8, Some(0)),
        (19, Some(0)),
        (20, Some(3)),
        (29, Some(3)),
        (30, Some(7)),
        (31, None),
    ] {
        assert_eq!(at(offset.into()), Some(inside(offset, original)));
    }
    assert_eq!((at(32), at(u64::MAX)), (None, None));
    assert_eq!(arena.slot_at(placed.target), None);
}

#[test]
fn only_detours_that_nobody_can_be_in_are_reclaimed() {
    let (guest, mut arena) = guest_with_detours();
    let mut in_use: Vec<_> = (0..4)
        .map(|i| place(&guest, &mut arena, IMAGE + i, &[1; 20]).unwrap())
        .collect();
    let placed: Vec<_> = in_use.iter().map(|it| (it.number, it.target)).collect();
    in_use.truncate(1);
    // One is on a stack, one in a vCPU, one in use.
    guest.put(0x7000, placed[1].1.0 + 5);
    let ram = [range(0, 0x8000)];
    let rips = [placed[2].1.0];
    assert_eq!(arena.reclaim(&guest.memory, &ram, &rips, &[]), Ok(1));
    assert_eq!(arena.detour_at(placed[3].1), None);
    for (_, target) in &placed[..3] {
        assert!(arena.detour_at(*target).is_some());
    }
    let next = place(&guest, &mut arena, IMAGE + 9, &[1; 20]).unwrap();
    assert_eq!((next.number, next.target), placed[3]);
}

#[test]
fn a_detour_that_can_not_be_made_takes_nothing() {
    let (guest, mut arena) = guest_with_detours();
    let failed = arena.detour(
        &guest.memory,
        GuestVirtAddr(IMAGE),
        Pattern::default(),
        ANY,
        |_, _| Err("no"),
    );
    assert_eq!(failed, Err(PlaceError::Build("no")));
    let tied = arena.detour(
        &guest.memory,
        GuestVirtAddr(IMAGE),
        Pattern::at([4]),
        ANY,
        |number, at| Ok::<_, Infallible>(detour(number, at, &[])),
    );
    assert!(matches!(tied, Err(PlaceError::NoAddress { idle: 0, .. })));
    assert_eq!(arena.detours(), (0, 0));
    assert_eq!(place(&guest, &mut arena, IMAGE, &[]).unwrap().number, 0);
}
