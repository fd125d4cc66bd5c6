use proptest::prelude::*;

use super::*;
use crate::testing::TestMemory;

/// The bits of an entry that grant everything.
const RWU: u64 = PRESENT | WRITABLE | USER;
const MEMORY: usize = 1 << 20;
const ROOT: u64 = 0x1000;

fn put(memory: &TestMemory, at: u64, entry: u64) {
    memory
        .write(GuestPhysAddr(at), &entry.to_le_bytes())
        .unwrap();
}

fn tables(mode: PagingMode) -> PageTables {
    PageTables {
        root: GuestPhysAddr(ROOT),
        mode,
        no_execute: true,
    }
}

/// Maps `at` by one table a level, in the pages from `ROOT` on: `entries` are the entries from
/// the top level down, without the address of the next table.
fn map(memory: &TestMemory, mode: PagingMode, at: u64, entries: &[u64]) {
    let mut table = ROOT;
    for (i, entry) in entries.iter().enumerate() {
        let level = u64::from(mode.levels()) - i as u64;
        let index = (at >> (12 + 9 * (level - 1))) & 0x1ff;
        let next = if i + 1 == entries.len() {
            0
        } else {
            table + PAGE_SIZE
        };
        put(memory, table + index * 8, entry | next);
        table += PAGE_SIZE;
    }
}

#[test]
fn the_mode_follows_the_control_registers() {
    for (cr0, cr4, efer, expected) in [
        (1, 0, 0, Ok(PagingMode::Off)),
        (cr0::PG | 1, cr4::PAE, efer::LMA, Ok(PagingMode::FourLevel)),
        (
            cr0::PG | 1,
            cr4::PAE | cr4::LA57,
            efer::LMA,
            Ok(PagingMode::FiveLevel),
        ),
        (cr0::PG | 1, cr4::PAE, 0, Err(PagingModeError { pae: true })),
        (cr0::PG | 1, 0, 0, Err(PagingModeError { pae: false })),
    ] {
        let control = ControlRegisters {
            cr0,
            cr4,
            efer,
            ..ControlRegisters::default()
        };
        assert_eq!(control.paging_mode(), expected);
    }
}

#[test]
fn cr3_loses_its_flags() {
    let lam_and_pcid = (1 << 61) | 0x0123_4000 | 0x18;
    let control = ControlRegisters {
        cr0: cr0::PG,
        cr3: lam_and_pcid,
        cr4: cr4::PAE,
        efer: efer::LMA,
        ..ControlRegisters::default()
    };
    let tables = control.page_tables().unwrap();
    assert_eq!(tables.root, GuestPhysAddr(0x0123_4000));
    assert!(!tables.no_execute);
}

#[test]
fn pages_of_every_size_are_found() {
    const KERNEL: u64 = 0xffff_ffff_8123_4567;
    let four = PagingMode::FourLevel;
    let five = PagingMode::FiveLevel;
    for (mode, entries, phys, page_size) in [
        (
            four,
            vec![RWU, RWU, RWU, RWU | 0x5_5000],
            0x5_5567,
            PageSize::Size4K,
        ),
        // At the lowest level bit 7 is a memory type.
        (
            four,
            vec![RWU, RWU, RWU, RWU | 0x5_5080],
            0x5_5567,
            PageSize::Size4K,
        ),
        (
            four,
            vec![RWU, RWU, RWU | LARGE | 0x60_0000],
            0x63_4567,
            PageSize::Size2M,
        ),
        (
            four,
            vec![RWU, RWU, RWU | LARGE | LARGE_PAT],
            0x3_4567,
            PageSize::Size2M,
        ),
        (
            four,
            vec![RWU, RWU | LARGE | 0x4000_0000],
            0x4123_4567,
            PageSize::Size1G,
        ),
        (
            five,
            vec![RWU, RWU, RWU, RWU, RWU | 0x5_5000],
            0x5_5567,
            PageSize::Size4K,
        ),
        (
            five,
            vec![RWU, RWU, RWU | LARGE],
            0x0123_4567,
            PageSize::Size1G,
        ),
    ] {
        let memory = TestMemory::new(MEMORY);
        map(&memory, mode, KERNEL, &entries);
        let page = walk(&memory, tables(mode), KERNEL.into()).unwrap();
        assert_eq!(
            (page.phys, page.page_size),
            (phys.into(), page_size),
            "{entries:x?}"
        );
    }
}

#[test]
fn a_permission_needs_every_level() {
    let all = [RWU, RWU, RWU, RWU | GLOBAL | 0x8000];
    let granted = |entries: [u64; 4]| {
        let memory = TestMemory::new(MEMORY);
        map(&memory, PagingMode::FourLevel, 0x40_0000, &entries);
        let page = walk(&memory, tables(PagingMode::FourLevel), 0x40_0000.into()).unwrap();
        (
            page.writable(),
            page.user(),
            page.executable(),
            page.global(),
        )
    };
    assert_eq!(granted(all), (true, true, true, true));
    for level in 0..4 {
        let with = |change: fn(u64) -> u64| {
            let mut entries = all;
            entries[level] = change(entries[level]);
            granted(entries)
        };
        assert_eq!(with(|e| e & !WRITABLE), (false, true, true, true));
        assert_eq!(with(|e| e & !USER), (true, false, true, true));
        assert_eq!(with(|e| e | NO_EXECUTE), (true, true, false, true));
    }
}

#[test]
fn a_walk_s_error_names_the_level() {
    let at = GuestVirtAddr(0x7f12_3456_7000);
    let fails = |entries: &[u64], no_execute| {
        let memory = TestMemory::new(MEMORY);
        map(&memory, PagingMode::FourLevel, at.0, entries);
        let tables = PageTables {
            no_execute,
            ..tables(PagingMode::FourLevel)
        };
        walk(&memory, tables, at).unwrap_err()
    };
    assert_eq!(fails(&[], true), WalkError::NotPresent { at, level: 4 });
    assert_eq!(
        fails(&[RWU, RWU, WRITABLE], true),
        WalkError::NotPresent { at, level: 2 }
    );
    for (entries, level, no_execute) in [
        (vec![RWU | LARGE], 4, true),
        (vec![RWU, RWU | LARGE | 0x2000], 3, true),
        (vec![RWU, RWU, RWU | LARGE | 0x10_0000], 2, true),
        (vec![RWU, RWU, RWU, RWU | NO_EXECUTE], 1, false),
    ] {
        match fails(&entries, no_execute) {
            WalkError::ReservedBits { level: found, .. } => assert_eq!(found, level),
            other => panic!("{other}"),
        }
    }
    match fails(&[RWU, RWU | 0x7f_ffff_f000], true) {
        WalkError::Memory {
            level: 2, source, ..
        } => assert_eq!(source.len, 8),
        other => panic!("{other}"),
    }
}

#[test]
fn only_canonical_addresses_are_walked() {
    for (mode, at, canonical) in [
        (PagingMode::FourLevel, 0x0000_7fff_ffff_ffff, true),
        (PagingMode::FourLevel, 0x0000_8000_0000_0000, false),
        (PagingMode::FourLevel, 0xffff_7fff_ffff_ffff, false),
        (PagingMode::FourLevel, 0xffff_8000_0000_0000, true),
        (PagingMode::FiveLevel, 0x0000_8000_0000_0000, true),
        (PagingMode::FiveLevel, 0x0100_0000_0000_0000, false),
        (PagingMode::FiveLevel, 0xff00_0000_0000_0000, true),
    ] {
        let memory = TestMemory::new(MEMORY);
        let error = walk(&memory, tables(mode), GuestVirtAddr(at)).unwrap_err();
        let refused = matches!(error, WalkError::NonCanonical { .. });
        assert_eq!(refused, !canonical, "{mode:?} {at:#x}");
    }
}

#[test]
fn without_paging_an_address_is_its_own_translation() {
    let memory = TestMemory::new(0);
    let page = walk(&memory, tables(PagingMode::Off), 0x12_3456.into()).unwrap();
    assert_eq!(page.phys, 0x12_3456.into());
    assert!(page.writable() && page.user() && page.executable());
}

/// Two neighbouring virtual pages in physical pages that are no neighbours.
fn two_pages() -> (TestMemory, PageTables, GuestVirtAddr) {
    let memory = TestMemory::new(MEMORY);
    map(
        &memory,
        PagingMode::FourLevel,
        0x1000,
        &[RWU, RWU, RWU, PRESENT | WRITABLE | 0x9000],
    );
    put(
        &memory,
        ROOT + 3 * PAGE_SIZE + 2 * 8,
        PRESENT | WRITABLE | 0x6000,
    );
    (memory, tables(PagingMode::FourLevel), GuestVirtAddr(0x1000))
}

#[test]
fn a_range_may_cross_page_borders() {
    let (memory, tables, start) = two_pages();
    let at = start.wrapping_add(PAGE_SIZE - 2);
    write_virt(&memory, tables, at, &[1, 2, 3, 4]).unwrap();
    let mut halves = [[0; 2]; 2];
    memory.read(GuestPhysAddr(0x9ffe), &mut halves[0]).unwrap();
    memory.read(GuestPhysAddr(0x6000), &mut halves[1]).unwrap();
    assert_eq!(halves, [[1, 2], [3, 4]]);
    let mut back = [0; 4];
    read_virt(&memory, tables, at, &mut back).unwrap();
    assert_eq!(back, [1, 2, 3, 4]);
}

#[test]
fn a_word_is_read_from_one_page_or_two() {
    let (memory, tables, start) = two_pages();
    let end = start.wrapping_add(2 * PAGE_SIZE);
    let bytes: Vec<_> = (1..=24).collect();
    write_virt(&memory, tables, start.wrapping_add(PAGE_SIZE - 12), &bytes).unwrap();
    for first in [1, 4, 5, 6, 12, 13, 17] {
        let at = start.wrapping_add(PAGE_SIZE - 12 + u64::from(first) - 1);
        let expected = std::array::from_fn(|i| first + i as u8);
        let word = read_virt_u64(&memory, tables, at);
        assert_eq!(word, Ok(u64::from_le_bytes(expected)), "{at}");
    }
    for (at, done) in [(end, 0), (GuestVirtAddr(end.0 - 6), 6)] {
        let cause = WalkError::NotPresent { at: end, level: 1 }.into();
        let fault = VirtFault {
            at: end,
            done,
            cause,
        };
        assert_eq!(read_virt_u64(&memory, tables, at), Err(fault));
    }
}

#[test]
fn a_read_says_where_it_stopped() {
    let (memory, tables, start) = two_pages();
    let mut into = [0; 16];
    let end = start.wrapping_add(2 * PAGE_SIZE);
    let fault = read_virt(
        &memory,
        tables,
        end.wrapping_add(0_u64.wrapping_sub(6)),
        &mut into,
    );
    let cause = WalkError::NotPresent { at: end, level: 1 }.into();
    assert_eq!(
        fault,
        Err(VirtFault {
            at: end,
            done: 6,
            cause
        })
    );
}

#[test]
fn a_write_that_cannot_be_finished_changes_nothing() {
    let (memory, tables, start) = two_pages();
    let at = start.wrapping_add(2 * PAGE_SIZE - 4);
    let fault = write_virt(&memory, tables, at, &[0xff; 8]).unwrap_err();
    assert_eq!(
        (fault.at, fault.done),
        (start.wrapping_add(2 * PAGE_SIZE), 0)
    );
    let mut bytes = [1; 4];
    read_virt(&memory, tables, at, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn kernel_addresses_that_user_mode_s_tables_lack_are_read_by_the_kernel_s() {
    const AT: u64 = 0xffff_8000_0000_1000;
    let memory = TestMemory::new(MEMORY);
    // The top tables: the kernel's, and user mode's with the second of two pages only.
    let (kernel, user) = (ROOT, 0xa000);
    let plain = [RWU, RWU, RWU, PRESENT | 0x9000];
    map(&memory, PagingMode::FourLevel, AT, &plain);
    map(&memory, PagingMode::FourLevel, 0x1000, &plain);
    for (table, next) in [(user, 0xb000), (0xb000, 0xc000), (0xc000, 0xd000)] {
        let index = if table == user { 0x100 } else { 0 };
        put(&memory, table + index * 8, next | RWU);
    }
    put(&memory, 0xd000 + 2 * 8, PRESENT | 0x6000);
    memory.write(GuestPhysAddr(0x9ffe), &[1, 2]).unwrap();
    memory.write(GuestPhysAddr(0x6000), &[3, 4]).unwrap();
    let tables = PageTables {
        root: GuestPhysAddr(user),
        ..tables(PagingMode::FourLevel)
    };
    let read = |kernel: Option<u64>, at: u64| {
        let mut into = [0; 4];
        let kernel = kernel.map(GuestPhysAddr);
        let end = read_virt_or(
            &memory,
            tables,
            kernel,
            (at + PAGE_SIZE - 2).into(),
            &mut into,
        );
        (end.map_err(|fault| fault.done), into)
    };
    assert_eq!(read(None, AT), (Err(0), [0; 4]));
    assert_eq!(read(Some(kernel), AT), (Ok(()), [1, 2, 3, 4]));
    assert_eq!(read(Some(kernel), 0x1000), (Err(0), [0; 4]), "a user's");
}

#[test]
fn a_write_goes_neither_to_a_read_only_page_nor_to_memory_of_the_hosts() {
    for protected in [false, true] {
        let (memory, tables, start) = two_pages();
        let at = start.wrapping_add(PAGE_SIZE - 2);
        if protected {
            memory.protect(0x6000..0x6008);
        } else {
            put(&memory, ROOT + 3 * PAGE_SIZE + 2 * 8, PRESENT | 0x6000);
        }
        let fault = write_virt(&memory, tables, at, &[1; 4]).unwrap_err();
        let second = start.wrapping_add(PAGE_SIZE);
        assert_eq!(fault.at, second);
        let read_only = matches!(fault.cause, FaultCause::ReadOnly { at } if at == second);
        assert_eq!(read_only, !protected);
        let mut bytes = [9; 2];
        read_virt(&memory, tables, second, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 2]);
    }
}

#[test]
fn a_range_does_not_go_past_the_last_address() {
    let memory = TestMemory::new(0);
    let off = tables(PagingMode::Off);
    let mut into = [0; 2 * PAGE_SIZE as usize];
    assert!(read_virt(&memory, off, GuestVirtAddr(u64::MAX - 1), &mut into).is_err());
    assert!(write_virt(&memory, off, GuestVirtAddr(u64::MAX - 1), &into).is_err());
}

/// An entry that leads back into the small test memory more often than not.
fn hostile_entry() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..16_u64, any::<u64>())
            .prop_map(|(page, bits)| (page * PAGE_SIZE) | (bits & (0xfff | NO_EXECUTE)) | 1),
        Just(ROOT | RWU),
    ]
}

proptest! {
    #[test]
    fn hostile_tables_never_hang_or_panic(
        entries in prop::collection::vec(hostile_entry(), 512),
        at in any::<u64>(),
        five in any::<bool>(),
        no_execute in any::<bool>(),
    ) {
        let memory = TestMemory::new(16 * PAGE_SIZE as usize);
        for page in 0..16 {
            for (i, entry) in entries.iter().enumerate() {
                put(&memory, page * PAGE_SIZE + i as u64 * 8, entry.rotate_left(page as u32 / 8));
            }
        }
        let mode = if five { PagingMode::FiveLevel } else { PagingMode::FourLevel };
        let tables = PageTables { no_execute, ..tables(mode) };
        let canonical = ((at << 16).cast_signed() >> 16).cast_unsigned();
        for at in [GuestVirtAddr(at), GuestVirtAddr(canonical)] {
            if let Ok(page) = walk(&memory, tables, at) {
                let within = page.page_size.bytes() - 1;
                prop_assert_eq!(page.phys.0 & within, at.0 & within);
            }
            let mut into = [0; 5000];
            if let Err(fault) = read_virt(&memory, tables, at, &mut into) {
                prop_assert!(fault.done < into.len());
            }
        }
    }
}
