//! The guest's RAM in the arena's page tables.

use guest_state::x86_64::paging::PageSize;

use super::*;

const GIGABYTE: u64 = 1 << 30;
/// 40 GiB and some pages, with a hole for devices.
const RAM: [PhysRange; 2] = [
    range(0, 3 * GIGABYTE),
    range(4 * GIGABYTE, 37 * GIGABYTE + 0x5000),
];

#[test]
fn ram_of_40_gib_is_mapped_read_only_in_pages_of_1_gib_where_the_cpu_has_them() {
    let guest = Guest::new();
    let ram = MappedRam::of(&RAM, true);
    let install = || Arena::install(&guest.memory, &guest.image, &guest.symbols, REGION, ram);
    let arena = install().unwrap();
    let (small, large) = (PageSize::Size2M, PageSize::Size1G);
    for (phys, size) in [
        (0x10_0000, small),
        (GIGABYTE - 1, small),
        (GIGABYTE, large),
        (3 * GIGABYTE - 1, large),
        (4 * GIGABYTE, large),
        (40 * GIGABYTE + 0x1234_5678, large),
        (41 * GIGABYTE + 0x4fff, small),
    ] {
        let found = guest.walk(RAM_WINDOW.wrapping_add(phys)).unwrap();
        assert_eq!((found.phys.0, found.page_size), (phys, size));
        assert!(!found.writable() && !found.executable() && !found.user() && !found.global());
        assert!(found.accessed() && !found.dirty());
    }
    for phys in [3 * GIGABYTE, 4 * GIGABYTE - 1, 42 * GIGABYTE] {
        let at = RAM_WINDOW.wrapping_add(phys);
        assert!(guest.walk(at).is_err(), "{at}");
    }
    // A page of 1 GiB of ours is as much ours as a directory is.
    assert_eq!(arena.is_intact(&guest.memory), Ok(true));
    install().unwrap();
    let entry = TABLE_PHYS + (RAM_WINDOW.0 / GIGABYTE % 512 + 40) * 8;
    guest.put(entry, guest.word(entry) | 2);
    assert_eq!(arena.is_intact(&guest.memory), Ok(false));
    let refused = install().unwrap_err();
    assert!(matches!(refused, InstallError::InUse { .. }), "{refused:?}");
}

#[test]
fn ram_of_40_gib_is_not_mapped_where_the_cpu_has_no_pages_of_1_gib() {
    assert_eq!(MappedRam::of(&RAM, false), None);
}
