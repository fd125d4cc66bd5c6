use super::*;

#[test]
fn a_slot_holds_its_code_and_is_found_by_its_addresses() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let boost = slot(
        &guest,
        &mut arena,
        IMAGE,
        &[0x48, 0x89, 0xc3, 0xe9, 1, 2, 3, 4],
    );
    assert!(SLOT_AREA.contains(&boost.address));
    assert_eq!(boost.address.0 % SLOT_LEN as u64, 0);
    let code = guest.code(boost.address, SLOT_LEN);
    assert_eq!(code[..8], [0x48, 0x89, 0xc3, 0xe9, 1, 2, 3, 4]);
    assert!(code[8..].iter().all(|byte| *byte == 0xcc));
    for offset in [0, 3, 31] {
        let inside = Inside {
            slot: boost.address,
            at: GuestVirtAddr(IMAGE),
            offset,
        };
        let rip = boost.address.wrapping_add(offset as u64);
        assert_eq!(arena.slot_at(rip), Some(inside));
    }
    let before = GuestVirtAddr(boost.address.0 - 1);
    let trampoline = arena.trampoline();
    for rip in [before, trampoline, HOLE.end, GuestVirtAddr(IMAGE)] {
        assert_eq!(arena.slot_at(rip), None, "{rip}");
    }
    assert_eq!(guest.code(trampoline, SLOT_LEN), [0xcc; SLOT_LEN]);
}

#[test]
fn every_slot_is_within_a_jump_of_the_image_and_the_modules() {
    let reach = 0xffff_ffff_ff00_0000 - SLOT_AREA.start.0;
    assert!(i32::try_from(reach).is_ok());
    assert_eq!(SLOT_AREA.end, HOLE.end);
}

#[test]
fn code_is_built_for_the_address_where_it_will_be() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let build = |at: GuestVirtAddr| Ok::<_, Infallible>(at.0.to_le_bytes().to_vec());
    let mut get = |at| {
        let at = GuestVirtAddr(at);
        arena.slot(&guest.memory, at, build).unwrap()
    };
    let (one, two) = (get(IMAGE), get(IMAGE + 1));
    for slot in [&one, &two] {
        assert_eq!(guest.code(slot.address, 8), slot.address.0.to_le_bytes());
    }
    assert_eq!(get(IMAGE), one);
    let failed = arena.slot(&guest.memory, GuestVirtAddr(7), |_| Err("no"));
    assert_eq!(failed, Err(SlotError::Build("no")));
    assert_eq!(
        try_slot(&guest, &mut arena, 7, &[0x90; 33]),
        Err(SlotError::TooLong { len: 33 })
    );
    assert!(try_slot(&guest, &mut arena, 7, &[0x90; 32]).is_ok());
}

#[test]
fn the_same_instruction_finds_its_slot_again() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let first = slot(&guest, &mut arena, IMAGE, &[0x90]);
    let address = first.address;
    assert_eq!(slot(&guest, &mut arena, IMAGE, &[0x90]), first);
    drop(first);
    let first = slot(&guest, &mut arena, IMAGE, &[0x90]);
    assert_eq!(first.address, address);
    // Other bytes or another place is another slot, and both remain.
    let others = [
        slot(&guest, &mut arena, IMAGE, &[0x91]),
        slot(&guest, &mut arena, IMAGE + 1, &[0x90]),
    ];
    assert!(!others.contains(&first));
    assert_eq!(slot(&guest, &mut arena, IMAGE, &[0x91]), others[0]);
    assert_eq!(guest.code(first.address, 1), [0x90]);
}

#[test]
fn text_that_went_away_gives_its_slots_to_nobody() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let old = slot(&guest, &mut arena, IMAGE, &[0x90]);
    let kept = slot(&guest, &mut arena, IMAGE + 0x10, &[0x90]);
    arena.discard(&(GuestVirtAddr(IMAGE)..GuestVirtAddr(IMAGE + 0x10)));
    assert!(arena.slot_at(old.address).is_some());
    let new = slot(&guest, &mut arena, IMAGE, &[0x90]);
    assert_ne!(new, old);
    assert_eq!(slot(&guest, &mut arena, IMAGE + 0x10, &[0x90]), kept);
    // In use as long as there is a clone of it, then reclaimed like any other.
    assert_eq!(arena.reclaim(&guest.memory, &[], &[], &[]), Ok(0));
    let address = old.address;
    drop(old);
    assert_eq!(arena.reclaim(&guest.memory, &[], &[], &[]), Ok(1));
    assert_eq!(arena.slot_at(address), None);
    let next = slot(&guest, &mut arena, IMAGE + 0x20, &[0x91]);
    assert_eq!(next.address, address);
    assert_eq!(guest.code(address, 1), [0x91]);
}

#[test]
fn only_slots_that_nobody_can_be_in_are_reclaimed() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let mut in_use: Vec<_> = (0..8)
        .map(|i| slot(&guest, &mut arena, IMAGE + i, &[0x90]))
        .collect();
    let all: Vec<_> = in_use.iter().map(|slot| slot.address).collect();
    in_use.truncate(1);
    let address = |i: usize, offset| all[i].0 + offset;
    // 0 is in use, in 1 there is a vCPU, 2 to 4 are in memory; 5 is, but not aligned, 6 is in
    // memory that isn't searched, 7 nowhere.
    guest.put(0x8008, address(2, 0));
    guest.put(0x1_fff8, address(3, 31));
    guest.put(0x3_fff8, address(4, 3));
    guest.put(0x9004, address(5, 0));
    guest.put(0xf008, address(6, 0));
    let ram = [range(0x8000, 0x4000), range(0x1_0000, 0x3_0000)];
    let rips = [0, u64::MAX, IMAGE, address(1, 3)];
    assert_eq!(arena.reclaim(&guest.memory, &ram, &rips, &[]), Ok(3));
    for (i, slot) in all.iter().enumerate() {
        assert_eq!(arena.slot_at(*slot).is_some(), i < 5, "{i}");
    }
    // They are found again, and used for others.
    let found = slot(&guest, &mut arena, IMAGE + 3, &[0x90]);
    assert_eq!(found.address, all[3]);
    let next = slot(&guest, &mut arena, IMAGE + 99, &[0x90]);
    assert!(all[5..].contains(&next.address));
    assert_eq!(slot(&guest, &mut arena, IMAGE + 99, &[0x90]), next);
}

#[test]
fn memory_that_cannot_be_read_frees_nothing() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let one = slot(&guest, &mut arena, IMAGE, &[0x90]).address;
    let beyond = [range(MEMORY as u64 - 0x1000, 0x2000)];
    assert!(arena.reclaim(&guest.memory, &beyond, &[], &[]).is_err());
    assert!(arena.slot_at(one).is_some());
}

#[test]
fn a_full_slot_area_says_so_and_goes_on_after_reclaiming() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let mut all = fill(&guest, &mut arena);
    assert_eq!(all.last().unwrap().address, SLOT_AREA.start);
    let given_back: Vec<_> = all.drain(..10).map(|slot| slot.address).collect();
    let full = try_slot(&guest, &mut arena, 1, &[0x90]).unwrap_err();
    assert!(matches!(full, SlotError::Full { idle: 10, .. }), "{full}");
    assert_eq!(arena.reclaim(&guest.memory, &[], &[], &[]), Ok(10));
    let again = slot(&guest, &mut arena, 1, &[0x90]);
    assert!(given_back.contains(&again.address));
}

#[test]
fn a_region_that_is_used_up_says_so_and_keeps_what_there_is() {
    let guest = Guest::new();
    let code = PhysRange {
        len: 0x20_0000,
        ..REGION.code
    };
    let mut arena = guest.install(ArenaMemory { code, ..REGION }).unwrap();
    let first = slot(&guest, &mut arena, IMAGE, &[0x90]);
    let mut count = 1;
    let refused = loop {
        match try_slot(&guest, &mut arena, IMAGE + count, &[0x90]) {
            Ok(slot) => assert!(slot.address.0 >= HOLE.end.0 - code.len),
            Err(error) => break error,
        }
        count += 1;
    };
    assert_eq!(refused, SlotError::NoRoom);
    assert_eq!(count, code.len / SLOT_LEN as u64 - RESERVED as u64);
    assert_eq!(guest.code(first.address, 1), [0x90]);
    assert_eq!(slot(&guest, &mut arena, IMAGE, &[0x90]), first);
}
