//! Springboards for jumps in modules.

use std::collections::BTreeSet;
use std::convert::Infallible;

use guest_state::x86_64::jmp_rel32;

use super::*;
use crate::detour::{Detour, Pattern};

const WIDE: ArenaMemory = ArenaMemory {
    code: range(0x4000_0000, 0x4000_0000),
    ..REGION
};
const MODULE: GuestVirtAddr = GuestVirtAddr(0xffff_ffff_c012_3450);
/// The kernel's page directory for its image.
const DIRECTORY: u64 = IMAGE + 0x1000;
const DIRECTORY_PHYS: u64 = IMAGE_PHYS + 0x1000;
/// The entries of it for the springboards.
const FIRST: u64 = 96;
const COUNT: u64 = 32;

fn guest(symbols: &[(u64, &str)]) -> (Guest, Arena) {
    let all = [&[(TABLE, "level3_kernel_pgt")], symbols].concat();
    let guest = Guest {
        memory: TestMemory::new(0x8000_0000),
        ..Guest::with(&all)
    };
    guest.put(ROOT + 511 * 8, TABLE_PHYS | 0x63);
    guest.put(TABLE_PHYS + 510 * 8, DIRECTORY_PHYS | 0x63);
    guest.put(TABLE_PHYS + 511 * 8, 0x6000 | 0x67);
    let arena = guest.install(WIDE).unwrap();
    (guest, arena)
}

fn place(guest: &Guest, arena: &mut Arena) -> Result<Placed, PlaceError<Infallible>> {
    let build = |_, at| {
        Ok(Detour {
            at,
            code: vec![0x90; 40],
            copies: vec![(0, 8)],
            behind: (5, 30),
            full: None,
        })
    };
    let any = (u32::MAX, &BTreeSet::new());
    arena.detour(&guest.memory, MODULE, Pattern::at([4]), any, build)
}

#[test]
fn a_jump_of_a_module_whose_uppermost_byte_is_given_has_a_springboard_behind_the_image() {
    let (guest, mut arena) = guest(&[(DIRECTORY, "level2_kernel_pgt")]);
    assert!(guest.walk(MODULE_BOARDS.start).is_err());
    let placed = place(&guest, &mut arena).unwrap();
    assert!(MODULE_BOARDS.contains(&placed.target));
    assert_eq!((placed.jump[0], placed.jump[4]), (0xe9, 0xcc));
    let code = placed.detour.at;
    assert!(HOLE.contains(&code));
    let board = jmp_rel32(placed.target, code).unwrap();
    assert_eq!(guest.code(placed.target, 5), board);
    assert_eq!(guest.code(code, 40), [0x90; 40]);
    let before = GuestVirtAddr(placed.target.0 - 1);
    assert!(!MODULE_BOARDS.contains(&before) || guest.code(before, 1) == [INT3]);
    // Nothing else is written over it.
    assert!(
        arena.to_phys(placed.target)
            < arena.to_phys(GuestVirtAddr(HOLE.start.0 + (1 << 30) + (64 << 20)))
    );
    assert_eq!(
        arena.detour_at(placed.target).map(|it| it.number),
        Some(placed.number)
    );
    assert_eq!(arena.detour_at(placed.target).map(|it| it.offset), Some(0));
    // A task that was interrupted at the springboard keeps it.
    let target = placed.target;
    drop(placed);
    let reclaim = |arena: &mut Arena, rips: &[u64]| arena.reclaim(&guest.memory, &[], rips, &[]);
    assert_eq!(reclaim(&mut arena, &[target.0]).unwrap(), 0);
    assert_eq!(reclaim(&mut arena, &[]).unwrap(), 1);
    assert_eq!(place(&guest, &mut arena).unwrap().target, target);
}

#[test]
fn springboards_are_nowhere_that_the_kernel_maps_something() {
    let entry = |index: u64| DIRECTORY_PHYS + index * 8;
    for used in [FIRST, FIRST + COUNT - 1] {
        let (guest, mut arena) = guest(&[(DIRECTORY, "level2_kernel_pgt")]);
        guest.put(entry(used), 0x1e3);
        let placed = place(&guest, &mut arena);
        assert!(
            matches!(placed, Err(PlaceError::NoAddress { .. })),
            "{placed:?}"
        );
        let all = (0..512).map(|index| guest.word(entry(index)));
        assert_eq!(all.filter(|entry| *entry != 0).count(), 1);
        // The kernel has let go of it.
        guest.put(entry(used), 0x1e2);
        assert!(place(&guest, &mut arena).is_ok());
        let all = (0..512).map(|index| guest.word(entry(index)));
        assert_eq!(all.filter(|entry| *entry != 0).count() as u64, COUNT);
    }
}

#[test]
fn springboards_are_mapped_only_by_the_kernel_s_own_directory() {
    let (unknown, mut arena) = guest(&[]);
    assert!(place(&unknown, &mut arena).is_err());
    let (tampered, mut arena) = guest(&[(DIRECTORY, "level2_kernel_pgt")]);
    tampered.put(TABLE_PHYS + 510 * 8, 0x4000_0063);
    assert!(place(&tampered, &mut arena).is_err());
    assert_eq!(tampered.word(0x4000_0000 + FIRST * 8), 0);
}
