mod boards;
mod detours;
mod ram;
mod slots;
mod way_out;

use std::convert::Infallible;

use guest_kernel::symbols::synthetic;
use guest_state::Segment;
use guest_state::testing::TestMemory;
use guest_state::x86_64::paging::{PageTables, PagingMode, Translation, WalkError, walk};

use super::slots::RESERVED;
use super::*;
use crate::ring::layout::RING_LEN;

const IMAGE: u64 = synthetic::TEXT;
const IMAGE_PHYS: u64 = 0x1_0000;
const IMAGE_LEN: u64 = 0x3000;
/// The kernel's tables, from the top.
const ROOT: u64 = 0x1000;
const TABLE: u64 = IMAGE + 0x2000;
const TABLE_PHYS: u64 = IMAGE_PHYS + 0x2000;
const REGION: ArenaMemory = ArenaMemory {
    tables: GuestPhysAddr(0x8000),
    code: PhysRange {
        start: GuestPhysAddr(0x80_0000),
        len: 0x80_0000,
    },
    data: PhysRange {
        start: GuestPhysAddr(0x40_0000),
        len: 0x40_0000,
    },
    vcpus: 8,
};
const MEMORY: usize = 0x100_0000;

/// A stretch of physical memory.
const fn range(start: u64, len: u64) -> PhysRange {
    PhysRange {
        start: GuestPhysAddr(start),
        len,
    }
}

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
            image: ImageMap::new(vec![Segment {
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

    fn install(&self, region: ArenaMemory) -> Result<Arena, InstallError> {
        Arena::install(&self.memory, &self.image, &self.symbols, region, None)
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
        assert!(page.executable() && !page.writable() && !page.user());
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
    let ArenaMemory { code, data, .. } = REGION;
    for (at, phys, is_code) in [
        (HOLE.start.0, data.start.0, false),
        (
            HOLE.start.0 + data.len - 1,
            data.start.0 + data.len - 1,
            false,
        ),
        (HOLE.end.0 - code.len, code.start.0, true),
        (SLOT_AREA.start.0, code.start.0, true),
        (HOLE.end.0 - 1, code.start.0 + code.len - 1, true),
    ] {
        let at = GuestVirtAddr(at);
        let found = guest.walk(at).unwrap();
        assert_eq!(found.phys.0, phys, "{at}");
        assert_eq!(
            (found.executable(), found.writable(), found.user()),
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
    for (vcpus, blocks) in [(8, 16 * MIB), (17, 18 * MIB), (64, 64 * MIB)] {
        let data = PhysRange {
            start: GuestPhysAddr(1 << 30),
            len: blocks + 16 * MIB + u64::from(vcpus) * 4 * MIB,
        };
        let region = ArenaMemory {
            data,
            vcpus,
            ..REGION
        };
        let guest = Guest::new();
        let arena = guest.install(region).unwrap();
        let mut expected = vec![
            (BLOCKS.start.0, 0, blocks),
            (CALLS.start.0, blocks, 16 * MIB),
        ];
        // Also of numbers that no vCPU has: the guest can write any into its heads.
        for number in 0..64 {
            let ring = number % u64::from(vcpus);
            for round in [0, 4 * MIB] {
                let at = RINGS.0 + number * 8 * MIB + round;
                expected.push((at, blocks + 16 * MIB + ring * 4 * MIB, 4 * MIB));
            }
        }
        for at in (HOLE.start.0..HOLE.start.0 + (1 << 30)).step_by(2 * MIB as usize) {
            let mut found = expected.iter().filter_map(|(virt, offset, len)| {
                let inside = at.checked_sub(*virt).filter(|inside| inside < len)?;
                Some(GuestPhysAddr(data.start.0 + offset + inside))
            });
            let phys = found.next();
            for last in [0, 2 * MIB - 1] {
                let at = GuestVirtAddr(at + last);
                let phys = phys.map(|phys| phys.wrapping_add(last));
                assert_eq!(arena.to_phys(at), phys, "{at}");
                let page = guest.walk(at).ok();
                assert_eq!(page.as_ref().map(|page| page.phys), phys, "{at}");
                assert!(
                    page.is_none_or(|page| page.writable() && !page.executable() && !page.user())
                );
            }
        }
    }
}

#[test]
fn memory_that_does_not_hold_a_whole_ring_does_not_map_it() {
    let guest = Guest::new();
    for (len, rings) in [(0x220_0000, 0), (0x240_0000, 1), (0x3e0_0000, 7)] {
        let data = PhysRange {
            start: GuestPhysAddr(1 << 30),
            len,
        };
        let arena = guest.install(ArenaMemory { data, ..REGION }).unwrap();
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
    let part = |phys, len| PhysRange {
        start: GuestPhysAddr(phys),
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
            ArenaMemory {
                code: bad,
                ..REGION
            },
            ArenaMemory {
                data: bad,
                ..REGION
            },
        ] {
            let refused = guest.install(region).unwrap_err();
            assert_eq!(refused, InstallError::BadRegion { region });
        }
    }
    let region = ArenaMemory {
        tables: GuestPhysAddr(0x8008),
        ..REGION
    };
    assert!(matches!(
        guest.install(region),
        Err(InstallError::BadRegion { .. })
    ));
    for region in [
        ArenaMemory {
            tables: GuestPhysAddr(MEMORY as u64),
            ..REGION
        },
        ArenaMemory {
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
