use std::convert::Infallible;

use super::slots::RESERVED;
use super::*;
use crate::detour::{Detour, Pattern};
use crate::guest::testing::TestMemory;
use crate::image_map::ImageSegment;
use crate::paging::{PageTables, PagingMode, Translation, WalkError, walk};
use crate::ring::layout::RING_LEN;
use crate::symbols::synthetic;

const IMAGE: u64 = synthetic::TEXT;
const IMAGE_PHYS: u64 = 0x1_0000;
const IMAGE_LEN: u64 = 0x3000;
/// The kernel's tables, from the top.
const ROOT: u64 = 0x1000;
const TABLE: u64 = IMAGE + 0x2000;
const TABLE_PHYS: u64 = IMAGE_PHYS + 0x2000;
const REGION: Region = Region {
    tables: GuestPhysAddr(0x8000),
    code: Part {
        phys: GuestPhysAddr(0x80_0000),
        len: 0x80_0000,
    },
    data: Part {
        phys: GuestPhysAddr(0x40_0000),
        len: 0x40_0000,
    },
};
const MEMORY: usize = 0x100_0000;

struct Guest {
    memory: TestMemory,
    image: ImageMap,
    symbols: Symbols,
}

impl Guest {
    fn new() -> Self {
        Self::with(&[(TABLE, "level3_kernel_pgt")])
    }

    fn with(symbols: &[(u64, &str)]) -> Self {
        let mut definitions = vec![
            (IMAGE, 'T', "_stext".to_owned()),
            (IMAGE + 0x1000, 'T', "_etext".to_owned()),
        ];
        definitions.extend(symbols.iter().map(|(at, name)| (*at, 'D', (*name).into())));
        let guest = Self {
            memory: TestMemory::new(MEMORY),
            image: ImageMap::new(vec![ImageSegment {
                virt: GuestVirtAddr(IMAGE),
                phys: GuestPhysAddr(IMAGE_PHYS),
                len: IMAGE_LEN,
            }]),
            symbols: Symbols::from_elf_symtab(&synthetic::unstripped(&definitions)).unwrap(),
        };
        guest.put(ROOT + 511 * 8, TABLE_PHYS | 0x63);
        guest.put(TABLE_PHYS + 510 * 8, 0x5000 | 0x63);
        guest.put(TABLE_PHYS + 511 * 8, 0x6000 | 0x67);
        guest
    }

    fn put(&self, at: u64, word: u64) {
        self.memory
            .write(GuestPhysAddr(at), &word.to_le_bytes())
            .unwrap();
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(GuestPhysAddr(at), &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn install(&self, region: Region) -> Result<Arena, InstallError> {
        Arena::install(&self.memory, &self.image, &self.symbols, region)
    }

    fn arena(&self) -> Arena {
        self.install(REGION).unwrap()
    }

    fn walk(&self, at: GuestVirtAddr) -> Result<Translation, WalkError> {
        let tables = PageTables {
            root: GuestPhysAddr(ROOT),
            mode: PagingMode::FourLevel,
            no_execute: true,
        };
        walk(&self.memory, tables, at)
    }

    /// What the guest would execute at an address.
    fn code(&self, at: GuestVirtAddr, len: usize) -> Vec<u8> {
        let page = self.walk(at).unwrap();
        assert!(page.executable && !page.writable && !page.user);
        let mut bytes = vec![0; len];
        self.memory.read(page.phys, &mut bytes).unwrap();
        bytes
    }
}

/// A slot for the instruction at `at` that holds `code`.
fn slot(guest: &Guest, arena: &mut Arena, at: u64, code: &[u8]) -> Slot {
    try_slot(guest, arena, at, code).unwrap()
}

fn try_slot(
    guest: &Guest,
    arena: &mut Arena,
    at: u64,
    code: &[u8],
) -> Result<Slot, SlotError<Infallible>> {
    let at = GuestVirtAddr(at);
    arena.slot(&guest.memory, at, |_| Ok(code.to_vec()))
}

/// Gives out every slot there is; the region has to hold them.
fn fill(guest: &Guest, arena: &mut Arena) -> Vec<Slot> {
    let mut all = vec![];
    loop {
        match try_slot(guest, arena, IMAGE + all.len() as u64, &[0x90]) {
            Ok(slot) => all.push(slot),
            Err(SlotError::Full { slots, .. }) => {
                assert_eq!(all.len() + RESERVED, slots);
                return all;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn all_of_the_region_is_mapped_at_the_two_ends_of_the_hole() {
    let guest = Guest::new();
    let arena = guest.arena();
    let Region { code, data, .. } = REGION;
    for (at, phys, is_code) in [
        (HOLE.start.0, data.phys.0, false),
        (
            HOLE.start.0 + data.len - 1,
            data.phys.0 + data.len - 1,
            false,
        ),
        (HOLE.end.0 - code.len, code.phys.0, true),
        (SLOT_AREA.start.0, code.phys.0, true),
        (HOLE.end.0 - 1, code.phys.0 + code.len - 1, true),
    ] {
        let at = GuestVirtAddr(at);
        let found = guest.walk(at).unwrap();
        assert_eq!(found.phys.0, phys, "{at}");
        assert_eq!(
            (found.executable, found.writable, found.user),
            (is_code, !is_code, false)
        );
        assert_eq!(arena.to_phys(at), Some(found.phys));
    }
    for at in [
        HOLE.start.0 - 1,
        HOLE.start.0 + data.len,
        HOLE.end.0 - code.len - 1,
        HOLE.end.0,
    ] {
        let at = GuestVirtAddr(at);
        assert!(guest.walk(at).is_err(), "{at}");
        assert_eq!(arena.to_phys(at), None);
    }
}

#[test]
fn each_ring_is_mapped_twice_in_a_row_and_blocks_and_calls_once() {
    const MIB: u64 = 1 << 20;
    let data = Part {
        phys: GuestPhysAddr(1 << 30),
        len: 64 * MIB,
    };
    let guest = Guest::new();
    let arena = guest.install(Region { data, ..REGION }).unwrap();
    let mut expected = vec![
        (BLOCKS.start.0, 0, 16 * MIB),
        (CALLS.start.0, 16 * MIB, 16 * MIB),
    ];
    for ring in 0..8 {
        for round in [0, 4 * MIB] {
            let at = RINGS.0 + ring * 8 * MIB + round;
            expected.push((at, 32 * MIB + ring * 4 * MIB, 4 * MIB));
        }
    }
    for at in (HOLE.start.0..HOLE.start.0 + (1 << 30)).step_by(2 * MIB as usize) {
        let mut found = expected.iter().filter_map(|(virt, offset, len)| {
            let inside = at.checked_sub(*virt).filter(|inside| inside < len)?;
            Some(GuestPhysAddr(data.phys.0 + offset + inside))
        });
        let phys = found.next();
        for last in [0, 2 * MIB - 1] {
            let at = GuestVirtAddr(at + last);
            let phys = phys.map(|phys| phys.wrapping_add(last));
            assert_eq!(arena.to_phys(at), phys, "{at}");
            let page = guest.walk(at).ok();
            assert_eq!(page.as_ref().map(|page| page.phys), phys, "{at}");
            assert!(page.is_none_or(|page| page.writable && !page.executable && !page.user));
        }
    }
}

#[test]
fn memory_that_does_not_hold_a_whole_ring_does_not_map_it() {
    let guest = Guest::new();
    for (len, rings) in [(0x220_0000, 0), (0x240_0000, 1), (0x3e0_0000, 7)] {
        let data = Part {
            phys: GuestPhysAddr(1 << 30),
            len,
        };
        let arena = guest.install(Region { data, ..REGION }).unwrap();
        let mapped = |ring: &u64| {
            let at = RINGS.wrapping_add(ring * 2 * RING_LEN);
            arena.to_phys(at).is_some() && guest.walk(at).is_ok()
        };
        assert_eq!(
            (0..8).filter(mapped).collect::<Vec<_>>(),
            (0..rings).collect::<Vec<_>>()
        );
    }
}

#[test]
fn the_entries_are_marked_as_used_like_the_kernels() {
    let guest = Guest::new();
    guest.arena();
    let directory = |index: u64| guest.word(TABLE_PHYS + index * 8);
    assert_eq!(
        (directory(508) & 0xfff, directory(509) & 0xfff),
        (0x63, 0x63)
    );
    let leaf = |index, entry: u64| guest.word((directory(index) & !0xfff) + entry * 8);
    let flags = 0xfff | 1 << 63;
    assert_eq!(leaf(508, 0) & flags, 1 << 63 | 0xe3);
    assert_eq!(leaf(509, 511) & flags, 0x1a1);
}

#[test]
fn a_kernel_that_is_not_as_expected_is_left_alone() {
    let nameless = Guest::with(&[]);
    assert!(matches!(
        nameless.install(REGION),
        Err(InstallError::NoTable(_))
    ));
    for address in [0xffff_ffff_9000_0000, TABLE + 8, IMAGE + 0x2800] {
        let guest = Guest::with(&[(address, "level3_kernel_pgt")]);
        let address = GuestVirtAddr(address);
        assert_eq!(
            guest.install(REGION).unwrap_err(),
            InstallError::NotLoaded { address }
        );
    }
    for (index, entry) in [
        (508, 0x8000_0063),
        (509, 1),
        (510, 0),
        (511, 0x2000),
        (510, 0x4000_00e3),
    ] {
        let guest = Guest::new();
        guest.put(TABLE_PHYS + index * 8, entry);
        let expected = if index < 510 {
            InstallError::InUse { index, entry }
        } else {
            InstallError::NotTheTable { index, entry }
        };
        assert_eq!(guest.install(REGION).unwrap_err(), expected);
        assert_eq!(guest.word(TABLE_PHYS + index * 8), entry);
        assert_eq!(guest.word(TABLE_PHYS + (1017 - index) * 8), 0, "{index}");
    }
}

#[test]
fn a_region_that_cannot_hold_an_arena_is_refused() {
    let guest = Guest::new();
    let part = |phys, len| Part {
        phys: GuestPhysAddr(phys),
        len,
    };
    for bad in [
        part(0x40_0000, 0),
        part(0x40_0000, 0x30_0000),
        part(0x41_0000, 0x20_0000),
        part(0, (1 << 30) + 0x20_0000),
        part(!0x1f_ffff, 0x20_0000),
        part(1 << 52, 0x20_0000),
    ] {
        for region in [
            Region {
                code: bad,
                ..REGION
            },
            Region {
                data: bad,
                ..REGION
            },
        ] {
            let refused = guest.install(region).unwrap_err();
            assert_eq!(refused, InstallError::BadRegion { region });
        }
    }
    let region = Region {
        tables: GuestPhysAddr(0x8008),
        ..REGION
    };
    assert!(matches!(
        guest.install(region),
        Err(InstallError::BadRegion { .. })
    ));
    for region in [
        Region {
            tables: GuestPhysAddr(MEMORY as u64),
            ..REGION
        },
        Region {
            code: part(MEMORY as u64, 0x20_0000),
            ..REGION
        },
    ] {
        let guest = Guest::new();
        let refused = guest.install(region);
        assert!(matches!(refused, Err(InstallError::Memory(_))));
        let entries = [508, 509].map(|index| guest.word(TABLE_PHYS + index * 8));
        assert_eq!(entries, [0, 0], "the kernel's table is as it was");
    }
}

#[test]
fn installing_again_begins_anew_and_tampering_is_seen() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    assert_eq!(arena.is_intact(&guest.memory), Ok(true));
    let old = slot(&guest, &mut arena, IMAGE, &[0x90]);
    let arena = guest.arena();
    assert_eq!(arena.slot_at(old.address), None);
    guest.put(TABLE_PHYS + 508 * 8, 0);
    assert_eq!(arena.is_intact(&guest.memory), Ok(false));
}

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
            slot: boost,
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
    for slot in [one, two] {
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
    assert_eq!(slot(&guest, &mut arena, IMAGE, &[0x90]), first);
    arena.release(first);
    arena.release(first);
    assert_eq!(slot(&guest, &mut arena, IMAGE, &[0x90]), first);
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
    // In use until released, then reclaimed like any other.
    assert_eq!(arena.reclaim(&guest.memory, &[], &[], &[]), Ok(0));
    arena.release(old);
    assert_eq!(arena.reclaim(&guest.memory, &[], &[], &[]), Ok(1));
    assert_eq!(arena.slot_at(old.address), None);
    assert_eq!(slot(&guest, &mut arena, IMAGE + 0x20, &[0x91]), old);
    assert_eq!(guest.code(old.address, 1), [0x91]);
}

#[test]
fn only_slots_that_nobody_can_be_in_are_reclaimed() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let all: Vec<_> = (0..8)
        .map(|i| slot(&guest, &mut arena, IMAGE + i, &[0x90]))
        .collect();
    for slot in &all[1..] {
        arena.release(*slot);
    }
    let address = |i: usize, offset| all[i].address.0 + offset;
    // 0 is in use, in 1 there is a vCPU, 2 to 4 are in memory; 5 is, but not aligned, 6 is where
    // nobody looks, 7 nowhere.
    guest.put(0x8008, address(2, 0));
    guest.put(0x1_fff8, address(3, 31));
    guest.put(0x3_fff8, address(4, 3));
    guest.put(0x9004, address(5, 0));
    guest.put(0xf008, address(6, 0));
    let ram = [
        (GuestPhysAddr(0x8000), 0x4000),
        (GuestPhysAddr(0x1_0000), 0x3_0000),
    ];
    let rips = [0, u64::MAX, IMAGE, address(1, 3)];
    assert_eq!(arena.reclaim(&guest.memory, &ram, &rips, &[]), Ok(3));
    for (i, slot) in all.iter().enumerate() {
        assert_eq!(arena.slot_at(slot.address).is_some(), i < 5, "{i}");
    }
    // They are found again, and used for others.
    assert_eq!(slot(&guest, &mut arena, IMAGE + 3, &[0x90]), all[3]);
    let next = slot(&guest, &mut arena, IMAGE + 99, &[0x90]);
    assert!(all[5..].contains(&next));
    assert_eq!(slot(&guest, &mut arena, IMAGE + 99, &[0x90]), next);
}

#[test]
fn memory_that_cannot_be_read_frees_nothing() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let one = slot(&guest, &mut arena, IMAGE, &[0x90]);
    arena.release(one);
    let beyond = [(GuestPhysAddr(MEMORY as u64 - 0x1000), 0x2000)];
    assert!(arena.reclaim(&guest.memory, &beyond, &[], &[]).is_err());
    assert!(arena.slot_at(one.address).is_some());
}

#[test]
fn a_full_slot_area_says_so_and_goes_on_after_reclaiming() {
    let guest = Guest::new();
    let mut arena = guest.arena();
    let all = fill(&guest, &mut arena);
    assert_eq!(all.last().unwrap().address, SLOT_AREA.start);
    for slot in &all[..10] {
        arena.release(*slot);
    }
    let full = try_slot(&guest, &mut arena, 1, &[0x90]).unwrap_err();
    assert!(matches!(full, SlotError::Full { idle: 10, .. }), "{full}");
    assert_eq!(arena.reclaim(&guest.memory, &[], &[], &[]), Ok(10));
    let again = slot(&guest, &mut arena, 1, &[0x90]);
    assert!(all[..10].contains(&again));
}

#[test]
fn a_region_that_is_used_up_says_so_and_keeps_what_there_is() {
    let guest = Guest::new();
    let code = Part {
        len: 0x20_0000,
        ..REGION.code
    };
    let mut arena = guest.install(Region { code, ..REGION }).unwrap();
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

/// Room for detours below the slots.
const WITH_DETOURS: Region = Region {
    code: Part {
        phys: GuestPhysAddr(0x100_0000),
        len: 0x100_0000,
    },
    ..REGION
};

fn guest_with_detours() -> (Guest, Arena) {
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

/// What a detour at `at` is: its own number and address, and `more`.
fn detour(number: u32, at: GuestVirtAddr, more: &[u8]) -> Detour {
    let mut code = number.to_le_bytes().to_vec();
    code.extend(at.0.to_le_bytes());
    code.extend(more);
    Detour {
        at,
        code,
        copies: vec![],
        full: None,
    }
}

fn place(
    guest: &Guest,
    arena: &mut Arena,
    at: u64,
    more: &[u8],
) -> Result<Placed, DetourError<Infallible>> {
    let build = |number, place| Ok(detour(number, place, more));
    arena.detour(&guest.memory, GuestVirtAddr(at), Pattern::default(), build)
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
    let single = arena.detour(&guest.memory, at, pattern, build);
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
    arena.release_detour(first.number);
    arena.release_detour(first.number);
    let other = place(&guest, &mut arena, IMAGE, &[2]).unwrap();
    assert_ne!(other.number, first.number);
    assert_eq!(place(&guest, &mut arena, IMAGE, &[1]).as_ref(), Ok(&first));
    arena.discard(&(GuestVirtAddr(IMAGE)..GuestVirtAddr(IMAGE + 1)));
    let anew = place(&guest, &mut arena, IMAGE, &[1]).unwrap();
    assert_ne!(anew.number, first.number);
}

#[test]
fn an_address_tells_its_detour() {
    let (guest, mut arena) = guest_with_detours();
    let placed = place(&guest, &mut arena, IMAGE, &[1; 20]).unwrap();
    let at = |by: u64| arena.detour_at(placed.target.wrapping_add(by));
    let inside = |offset| InDetour {
        number: placed.number,
        at: GuestVirtAddr(IMAGE),
        offset,
    };
    assert_eq!(at(0), Some(inside(0)));
    assert_eq!(at(31), Some(inside(31)));
    assert_eq!((at(32), at(u64::MAX)), (None, None));
    assert_eq!(arena.slot_at(placed.target), None);
}

#[test]
fn only_detours_that_nobody_can_be_in_are_reclaimed() {
    let (guest, mut arena) = guest_with_detours();
    let placed: Vec<_> = (0..4)
        .map(|i| place(&guest, &mut arena, IMAGE + i, &[1; 20]).unwrap())
        .collect();
    for placed in &placed[1..] {
        arena.release_detour(placed.number);
    }
    // One is on a stack, one in a vCPU, one in use.
    guest.put(0x7000, placed[1].target.0 + 5);
    let ram = [(GuestPhysAddr(0), 0x8000)];
    let rips = [placed[2].target.0];
    assert_eq!(arena.reclaim(&guest.memory, &ram, &rips, &[]), Ok(1));
    assert_eq!(arena.detour_at(placed[3].target), None);
    for placed in &placed[..3] {
        assert!(arena.detour_at(placed.target).is_some());
    }
    let next = place(&guest, &mut arena, IMAGE + 9, &[1; 20]).unwrap();
    assert_eq!(
        (next.number, next.target),
        (placed[3].number, placed[3].target)
    );
}

#[test]
fn a_detour_that_can_not_be_made_takes_nothing() {
    let (guest, mut arena) = guest_with_detours();
    let failed = arena.detour(
        &guest.memory,
        GuestVirtAddr(IMAGE),
        Pattern::default(),
        |_, _| Err("no"),
    );
    assert_eq!(failed, Err(DetourError::Build("no")));
    let tied = arena.detour(
        &guest.memory,
        GuestVirtAddr(IMAGE),
        Pattern::at([4]),
        |number, at| Ok::<_, Infallible>(detour(number, at, &[])),
    );
    assert!(matches!(tied, Err(DetourError::NoAddress { idle: 0, .. })));
    assert_eq!(arena.detours(), (0, 0));
    assert_eq!(place(&guest, &mut arena, IMAGE, &[]).unwrap().number, 0);
}
