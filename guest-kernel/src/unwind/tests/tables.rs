use super::*;
use crate::btf::synthetic::Builder;
use crate::symbols::synthetic::{Definition, Layout, SEGMENT, vmlinux};

const ETEXT: u64 = 0x400;
const TABLE: u64 = 0x800;
const BANNER: u64 = 0x600;

fn find(orc: &Orc, offset: u64) -> Option<i16> {
    let entry = orc.find(GuestVirtAddr(TEXT.wrapping_add(offset)))?;
    Some(entry.sp_offset)
}

#[test]
fn an_entry_is_for_all_code_up_to_the_next() {
    let orc = orc(&[(0x10, call(8)), (0x20, call(16)), (0x40, call(24))]);
    for (offset, expected) in [
        (u64::MAX, None),
        (0, None),
        (0xf, None),
        (0x10, Some(8)),
        (0x1f, Some(8)),
        (0x20, Some(16)),
        (0x3f, Some(16)),
        (0x40, Some(24)),
        (TEXT_LEN - 1, Some(24)),
        (TEXT_LEN, None),
    ] {
        assert_eq!(find(&orc, offset), expected, "{offset:#x}");
    }
}

#[test]
fn entries_out_of_order_are_sorted() {
    let orc = orc(&[(0x40, call(24)), (0x10, call(8)), (0x20, call(16))]);
    for (offset, expected) in [(0x10, 8), (0x20, 16), (0x40, 24)] {
        assert_eq!(find(&orc, offset), Some(expected), "{offset:#x}");
    }
}

#[test]
fn what_only_ends_code_gives_way_to_what_begins_there() {
    let nothing = entry(FrameType::Undefined, Base::Undefined, 0);
    for entries in [
        [(0x10, call(8)), (0x20, nothing), (0x20, call(16))],
        [(0x10, call(8)), (0x20, call(16)), (0x20, nothing)],
    ] {
        let orc = orc(&entries);
        assert_eq!(orc.len(), 2);
        assert_eq!(find(&orc, 0x20), Some(16));
    }
}

#[test]
fn neighbours_that_say_the_same_are_one() {
    let orc = orc(&[(0x10, call(8)), (0x20, call(8)), (0x30, call(16))]);
    assert_eq!((orc.len(), orc.is_empty()), (2, false));
    assert_eq!(find(&orc, 0x28), Some(8));
}

#[test]
fn damaged_tables_are_refused() {
    let read = |ips: &[u8], entries: &[u8]| {
        let raw = RawOrc {
            address: GuestVirtAddr(TEXT),
            ips,
            entries,
        };
        Orc::new(raw, FORMAT, vec![text()]).map(|orc| orc.len())
    };
    for (ips, entries) in [(4, 0), (0, 6), (4, 5), (5, 6), (8, 6), (4, 12)] {
        let found = read(&vec![0; ips], &vec![0; entries]);
        assert_eq!(found, Err(OrcError::Uneven { ips, entries }));
    }
    assert_eq!(read(&[], &[]), Ok(0));
    let mut far = i32::MIN.to_le_bytes().to_vec();
    far.extend(i32::MAX.to_le_bytes());
    let found = read(&far, &[0; 12]);
    assert!(matches!(found, Err(OrcError::Damaged { .. })), "{found:?}");
    // One kind more than there are numbers for.
    let count = (1 << 16) + 1;
    let kinds: Vec<_> = (0_u32..count)
        .flat_map(|i| [i as u8, (i >> 8) as u8, (i >> 16) as u8, 0, 5, 2])
        .collect();
    let ips = vec![0; count as usize * 4];
    let found = read(&ips, &kinds);
    assert!(matches!(found, Err(OrcError::Damaged { .. })), "{found:?}");
    assert_eq!(read(&ips[4..], &kinds[6..]), Ok(1 << 16));
}

/// Makes a vmlinux with such a banner, and a table between these symbols: where it starts and how long its halves are.
fn kernel(release: &str, bounds: &[(&str, u64)], entries: &[(u64, OrcEntry)]) -> Vec<u8> {
    let entries: Vec<_> = entries.iter().map(|(at, e)| (TEXT + at, *e)).collect();
    let (ips, kinds) = halves(TEXT + TABLE, &entries);
    let mut symbols: Vec<Definition> = [
        ("_text", 0),
        ("_stext", 0),
        ("_etext", ETEXT),
        ("linux_banner", BANNER),
    ]
    .iter()
    .chain(bounds)
    .map(|(name, offset)| (TEXT.wrapping_add(*offset), 'T', (*name).to_owned()))
    .collect();
    symbols.sort_by_key(|(address, ..)| *address);
    let last = TEXT + 0x1000;
    symbols.extend((0..300).map(|i| (last + i, 'd', format!("datum_{i}"))));
    let mut file = vmlinux(&symbols, Layout::V6_4);
    let banner = format!("Linux version {release} (gcc)\n\0");
    let parts = [
        (BANNER, banner.as_bytes()),
        (TABLE, &ips),
        (TABLE + 4 * entries.len() as u64, &kinds),
    ];
    for (offset, bytes) in parts {
        let start = SEGMENT + offset as usize;
        file[start..start + bytes.len()].copy_from_slice(bytes);
    }
    file
}

fn bounds(count: u64) -> [(&'static str, u64); 4] {
    let middle = TABLE + 4 * count;
    [
        ("__start_orc_unwind_ip", TABLE),
        ("__stop_orc_unwind_ip", middle),
        ("__start_orc_unwind", middle),
        ("__stop_orc_unwind", middle + 6 * count),
    ]
}

fn read(file: &[u8], btf: Option<&Btf>) -> Result<Unwinder, OrcError> {
    let image = Image::parse(file).unwrap();
    let symbols = Symbols::from_image(&image).unwrap();
    Unwinder::from_image(&image, &symbols, btf)
}

const ENTRIES: [(u64, OrcEntry); 2] = [(0x10, OrcEntry::CALLED), (0x20, OrcEntry::FRAME_POINTER)];

#[test]
fn the_table_of_an_image_is_found_by_its_symbols() {
    let unwinder = read(&kernel("6.12.1", &bounds(2), &ENTRIES), None).unwrap();
    for (offset, expected) in [
        (0xf, None),
        (0x10, Some(OrcEntry::CALLED)),
        (0x20, Some(OrcEntry::FRAME_POINTER)),
        (ETEXT - 1, Some(OrcEntry::FRAME_POINTER)),
        (ETEXT, None),
    ] {
        let found = unwinder.find(GuestVirtAddr(TEXT + offset));
        assert_eq!(found, expected, "{offset:#x}");
    }
    assert_eq!(unwinder.table().unwrap().len(), 2);
}

#[test]
fn types_count_more_than_the_release() {
    let mut b = Builder::new();
    let int = b.int("unsigned int", 4);
    let fields = [
        ("sp_reg", int, 32, 4),
        ("bp_reg", int, 36, 4),
        ("type", int, 40, 3),
        ("signal", int, 43, 1),
    ];
    b.bit_fields("orc_entry", 6, &fields);
    let types = Btf::parse(&b.bytes()).unwrap();
    let file = kernel("5.14.0-570.el9", &bounds(2), &ENTRIES);
    for (btf, expected) in [
        (Some(&types), FrameType::Call),
        // Type 2 was something else at the time.
        (None, FrameType::PartialRegisters),
    ] {
        let unwinder = read(&file, btf).unwrap();
        let found = unwinder.find(GuestVirtAddr(TEXT + 0x10)).unwrap();
        assert_eq!(found.frame, expected);
    }
}

#[test]
fn a_kernel_without_tables_has_frame_pointers() {
    let all = bounds(2);
    for bounds in [&[][..], &all[..2], &all[..3], &all[1..], &bounds(0)] {
        let unwinder = read(&kernel("6.12.1", bounds, &ENTRIES), None).unwrap();
        assert!(unwinder.table().is_none(), "{bounds:?}");
        assert!(unwinder.is_text(GuestVirtAddr(TEXT + 0x10)));
    }
}

#[test]
fn an_image_s_table_that_makes_no_sense_is_refused() {
    let [ips, end_of_ips, entries, _] = bounds(2);
    // It ends before it starts.
    let outside = ("__stop_orc_unwind", TABLE - 0x100);
    let short = ("__stop_orc_unwind", entries.1 + 6);
    for (release, last, expected) in [
        ("6.12.1", outside, "is not in its image"),
        ("6.12.1", short, "8 bytes of addresses, 6 bytes of entries"),
        ("next", bounds(2)[3], "in a way that vmprobe doesn't know"),
    ] {
        let file = kernel(release, &[ips, end_of_ips, entries, last], &ENTRIES);
        let found = read(&file, None).unwrap_err().to_string();
        assert!(found.contains(expected), "{found}");
    }
}
