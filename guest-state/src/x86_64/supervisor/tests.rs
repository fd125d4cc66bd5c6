use super::*;
use crate::testing::TestMemory;
use crate::x86_64::control::efer;
use crate::x86_64::page_entry::{ACCESSED, DIRTY, LARGE, PRESENT, USER, WRITABLE};

/// Tables of the test's guest, a page each: four levels, the last of 4 KiB pages.
const TABLES: [u64; 4] = [0x1000, 0x2000, 0x3000, 0x4000];
/// What the first 4 KiB pages map, from this address on.
const BASE: GuestVirtAddr = GuestVirtAddr(0xffff_8000_0020_0000);
const FRAMES: u64 = 0x1_0000;
const PLAIN: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY;

fn put(memory: &TestMemory, at: u64, word: u64) {
    memory.write_u64(GuestPhysAddr(at), word).unwrap();
}

fn get<const N: usize>(memory: &TestMemory, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    memory.read(GuestPhysAddr(at), &mut bytes).unwrap();
    bytes
}

/// A guest that maps `entries` from [`BASE`] on, below tables with `table` as their flags.
fn guest(table: u64, entries: &[u64]) -> (TestMemory, ControlRegisters) {
    let memory = TestMemory::new(8 << 20);
    for (level, pair) in (1..4).rev().zip(TABLES.windows(2)) {
        let index = BASE.0 >> (12 + 9 * level) & 0x1ff;
        put(&memory, pair[0] + index * 8, pair[1] | table);
    }
    for (index, entry) in (0..).zip(entries) {
        put(&memory, TABLES[3] + index * 8, *entry);
    }
    let control = ControlRegisters {
        cr0: cr0::PG | cr0::WP,
        cr3: TABLES[0] | 0x18,
        efer: efer::LMA,
        ..ControlRegisters::default()
    };
    (memory, control)
}

fn of(memory: &TestMemory, control: ControlRegisters) -> SupervisorMemory<'_> {
    SupervisorMemory::new(memory, &control).unwrap()
}

#[test]
fn a_write_goes_where_the_processor_s_would_and_nowhere_else() {
    let frame = |number: u64, flags| (FRAMES + number * PAGE_SIZE) | flags;
    // Flags of the tables and of the page, CR4, CR0 less WP, whether it can be written.
    let cases = [
        (PLAIN, PLAIN, 0, false, true),
        (PLAIN, PLAIN & !WRITABLE, 0, false, false),
        (PLAIN, PLAIN & !WRITABLE, 0, true, true),
        (PLAIN & !WRITABLE, PLAIN, 0, false, false),
        (PLAIN, PLAIN & !PRESENT, 0, false, false),
        (PLAIN & !PRESENT, PLAIN, 0, false, false),
        (PLAIN, PLAIN & !DIRTY, 0, false, false),
        (PLAIN, PLAIN & !ACCESSED, 0, false, false),
        (PLAIN | USER, PLAIN | USER, 0, false, true),
        (PLAIN | USER, PLAIN | USER, cr4::SMAP, false, false),
        (PLAIN | USER, PLAIN, cr4::SMAP, false, true),
        (PLAIN | USER, PLAIN | USER, cr4::PKE, false, false),
        (PLAIN, PLAIN, cr4::PKE, false, true),
        (PLAIN, PLAIN, cr4::PKS, false, false),
    ];
    for (number, (table, page, cr4, no_wp, allowed)) in (0..).zip(cases) {
        let (memory, mut control) = guest(table, &[frame(0, page)]);
        control.cr4 = cr4;
        control.cr0 &= if no_wp { !cr0::WP } else { u64::MAX };
        let written = of(&memory, control).write(BASE.wrapping_add(8), &[7; 8]);
        assert_eq!(written.is_ok(), allowed, "case {number}");
        let found: [u8; 8] = get(&memory, FRAMES + 8);
        assert_eq!(found == [7; 8], allowed, "case {number}");
    }
}

#[test]
fn a_range_over_two_pages_is_written_whole_or_not_at_all() {
    for second in [PLAIN, PLAIN & !WRITABLE] {
        let pages = [FRAMES | PLAIN, (FRAMES + 4 * PAGE_SIZE) | second];
        let (memory, control) = guest(PLAIN, &pages);
        let view = of(&memory, control);
        let allowed = second == PLAIN;
        let at = BASE.wrapping_add(PAGE_SIZE - 4);
        assert_eq!(view.write(at, &[1, 2, 3, 4, 5, 6]).is_ok(), allowed);
        let mut back = [9; 6];
        view.read(at, &mut back).unwrap();
        assert_eq!(back, if allowed { [1, 2, 3, 4, 5, 6] } else { [0; 6] });
    }
}

#[test]
fn an_operand_over_two_pages_is_stored_whole_or_not_at_all() {
    for second in [FRAMES + 4 * PAGE_SIZE, 8 << 20] {
        let (memory, control) = guest(PLAIN, &[FRAMES | PLAIN, second | PLAIN]);
        let view = of(&memory, control);
        let end = BASE.wrapping_add(PAGE_SIZE);
        view.write(GuestVirtAddr(end.0 - 4), &[9; 4]).unwrap();
        let span = view
            .span(GuestVirtAddr(end.0 - 2), 8, Intent::Write, 0)
            .unwrap();
        let is_memory = second != 8 << 20;
        let value = 0x0807_0605_0403_0201;
        assert_eq!(view.store(span, value).is_ok(), is_memory);
        assert_eq!(view.load(span).ok(), is_memory.then_some(value));
        let first = get(&memory, FRAMES + PAGE_SIZE - 4);
        assert_eq!(first, if is_memory { [9, 9, 1, 2] } else { [9; 4] });
    }
}

#[test]
fn memory_that_only_the_host_may_write_is_never_written_through_a_writable_mapping() {
    let (memory, control) = guest(PLAIN, &[FRAMES | PLAIN]);
    memory.protect(FRAMES..FRAMES + PAGE_SIZE);
    let written = of(&memory, control).write(BASE, &[1]);
    assert_eq!(written, Err(AccessError::Unknown));
    assert_eq!(get(&memory, FRAMES), [0]);
}

#[test]
fn large_pages_and_five_levels_are_walked() {
    let (memory, mut control) = guest(PLAIN, &[]);
    let at = BASE.0 >> 21 & 0x1ff;
    put(&memory, TABLES[2] + at * 8, 0x60_0000 | PLAIN | LARGE);
    let write = |control| of(&memory, control).write(BASE.wrapping_add(0x1234), &[5]);
    assert_eq!(write(control), Ok(()));
    assert_eq!(get(&memory, 0x60_1234), [5]);
    // BASE in a table above.
    put(&memory, 0x5000 + 0x1ff * 8, TABLES[0] | PLAIN);
    (control.cr3, control.cr4) = (0x5000, cr4::LA57);
    assert_eq!(write(control), Ok(()));
    put(&memory, TABLES[2] + at * 8, 0x60_2000 | PLAIN | LARGE);
    assert!(write(control).is_err(), "reserved bits");
}

#[test]
fn non_canonical_addresses_and_tables_outside_memory_are_refused() {
    let (memory, mut control) = guest(PLAIN, &[FRAMES | PLAIN]);
    let read = |control, at| of(&memory, control).read(GuestVirtAddr(at), &mut [0; 8]);
    assert_eq!(read(control, BASE.0), Ok(()));
    assert_eq!(read(control, 0x8000_0020_0000), Err(AccessError::Unknown));
    assert!(read(control, u64::MAX - 3).is_err());
    control.cr3 = 0x000f_ffff_ffff_f000;
    assert_eq!(read(control, BASE.0), Err(AccessError::Unknown));
}
