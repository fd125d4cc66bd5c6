use proptest::prelude::*;

use super::synthetic::{Definition, Layout, SEGMENT, TEXT, TEXT_LEN, elf, unstripped, vmlinux};
use super::*;

/// Makes more than 256 symbols of every sort, in order: some per-CPU, one with a very long name.
fn kernel(layout: Layout) -> Vec<Definition> {
    let mut symbols = vec![];
    let mut add = |address: u64, kind: char, name: &str| {
        symbols.push((address, kind, name.to_owned()));
    };
    if layout.has_per_cpu() {
        add(0, 'A', "__per_cpu_start");
        add(0, 'A', "fixed_percpu_data");
        add(0x1c740, 'A', "current_task");
    }
    add(TEXT, 'T', "_text");
    add(TEXT, 'T', "_stext");
    add(TEXT, 't', "startup_64");
    for i in 0..700 {
        add(
            TEXT + 0x100 + i * 4,
            't',
            &format!("function_{i}_with_read"),
        );
    }
    add(TEXT + 0xc00, 't', "same_name");
    add(TEXT + 0xc10, 'T', "do_sys_openat2");
    add(TEXT + 0xc20, 't', "same_name");
    add(TEXT + 0xc30, 't', &"Zq".repeat(200));
    add(TEXT + 0xc40, 't', "shrink.isra.0");
    add(TEXT + 0xc44, 't', "shrink.cold");
    add(TEXT + 0xc48, 't', "shrinker");
    add(TEXT + 0xd00, 'd', "a_datum_here");
    add(TEXT + 0xd00, 't', "a_local_alias");
    add(TEXT + 0xd00, 'T', "the_function");
    add(TEXT + 0xe00, 'T', "_etext");
    add(TEXT + 0xf00, 'T', "_sinittext");
    add(TEXT + 0xf00, 'T', "start_kernel");
    add(TEXT + 0xf80, 'T', "_einittext");
    add(TEXT + TEXT_LEN, 'R', "linux_banner");
    add(TEXT + TEXT_LEN, '?', "__nosave_begin");
    symbols
}

fn read(layout: Layout) -> Symbols {
    Symbols::from_vmlinux(&vmlinux(&kernel(layout), layout)).unwrap()
}

fn at(offset: u64) -> GuestVirtAddr {
    GuestVirtAddr(TEXT + offset)
}

#[test]
fn of_several_symbols_at_one_address_the_kernel_prints_the_first_of_its_table() {
    for layout in Layout::ALL {
        let symbols = read(layout);
        let printed = symbols.resolve_as_printed(at(0xd04)).unwrap();
        assert_eq!(printed.symbol.name, "a_datum_here");
        let resolved = symbols.resolve(at(0xd04)).unwrap();
        assert_eq!(resolved.symbol.name, "the_function");
        assert_eq!(
            (printed.offset, printed.size),
            (resolved.offset, resolved.size)
        );
    }
}

#[test]
fn every_layout_gives_all_symbols_back() {
    for layout in Layout::ALL {
        let defined = kernel(layout);
        let symbols = read(layout);
        let found: Vec<Definition> = symbols
            .iter()
            .map(|s| (s.address.0, s.kind, s.name.to_owned()))
            .collect();
        assert_eq!(found, defined, "{layout:?}");
        assert_eq!(
            (symbols.len(), symbols.source()),
            (defined.len(), Source::Kallsyms)
        );
        for (address, _, name) in &defined {
            assert!(
                symbols.by_name(name).any(|s| s.address.0 == *address),
                "{layout:?} {name}"
            );
        }
    }
}

#[test]
fn a_name_gives_its_one_symbol() {
    let symbols = read(Layout::V6_1);
    let symbol = symbols.find("do_sys_openat2").unwrap();
    assert_eq!((symbol.address, symbol.kind), (at(0xc10), 'T'));
    assert_eq!(
        symbols.find("current_task").unwrap().address,
        GuestVirtAddr(0x1c740)
    );
    assert_eq!(symbols.find(&"Zq".repeat(200)).unwrap().address, at(0xc30));
}

#[test]
fn a_name_of_several_symbols_is_ambiguous() {
    let symbols = read(Layout::V6_4);
    let error = symbols.find("same_name").unwrap_err();
    let addresses = vec![at(0xc00), at(0xc20)];
    assert_eq!(
        error,
        LookupError::Ambiguous {
            name: "same_name".to_owned(),
            addresses
        }
    );
    let message = error.to_string();
    assert!(
        message.contains("0xffffffff81000c00, 0xffffffff81000c20"),
        "{message}"
    );
    assert_eq!(symbols.by_name("same_name").count(), 2);
}

#[test]
fn an_unknown_name_hints_at_what_the_compiler_made_of_it() {
    let symbols = read(Layout::V6_4);
    let message = symbols.find("shrink").unwrap_err().to_string();
    assert!(
        message.contains("did you mean shrink.isra.0, shrink.cold?"),
        "{message}"
    );
    let message = symbols.find("do_sys_openat").unwrap_err().to_string();
    assert!(
        message.contains("did you mean do_sys_openat2?"),
        "{message}"
    );
    for name in ["nonsense", "", "openat"] {
        let message = symbols.find(name).unwrap_err().to_string();
        assert!(
            message.contains("has no symbol") && message.contains("inlined"),
            "{message}"
        );
    }
}

#[test]
fn an_address_resolves_to_the_nearest_symbol_below() {
    let symbols = read(Layout::V6_1);
    for (offset, name, into, size) in [
        (0xc10, "do_sys_openat2", 0, 0x10),
        (0xc1f, "do_sys_openat2", 0xf, 0x10),
        // The function, not the datum or the local alias at its address.
        (0xd08, "the_function", 8, 0x100),
        (0xe00, "_etext", 0, 0x100),
    ] {
        let resolved = symbols.resolve(at(offset)).unwrap();
        assert_eq!(resolved.symbol.name, name);
        assert_eq!((resolved.offset, resolved.size), (into, size), "{name}");
    }
}

#[test]
fn an_address_outside_the_image_resolves_to_nothing() {
    let symbols = read(Layout::V6_1);
    let last = symbols.resolve(at(TEXT_LEN + 4)).unwrap();
    assert_eq!(last.symbol.name, "linux_banner");
    let end = at(TEXT_LEN + last.size);
    for address in [0, 0x1c740, 0x7fff_0000_0000, TEXT - 1, end.0, u64::MAX] {
        assert_eq!(
            symbols.resolve(GuestVirtAddr(address)),
            None,
            "{address:#x}"
        );
    }
}

#[test]
fn text_is_what_lies_between_its_bounds() {
    let symbols = read(Layout::V7_2);
    assert_eq!(symbols.text(), at(0)..at(0xe00));
    assert_eq!(symbols.init_text(), at(0xf00)..at(0xf80));
    for (offset, expected) in [
        (0, true),
        (0xdff, true),
        (0xe00, false),
        (0xf00, true),
        (0xf80, false),
    ] {
        assert_eq!(symbols.is_text(at(offset)), expected, "{offset:#x}");
    }
    assert!(!symbols.is_text(GuestVirtAddr(0)));
}

#[test]
fn a_pattern_finds_symbols_in_the_order_of_their_addresses() {
    let symbols = read(Layout::V6_15);
    let names = |pattern| {
        symbols
            .find_matching(pattern)
            .map(|s| s.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names("shrink*"),
        ["shrink.isra.0", "shrink.cold", "shrinker"]
    );
    assert_eq!(names("function_69?_with_read").len(), 10);
    assert_eq!(names("same_name").len(), 2);
    assert!(names("nothing*").is_empty());
}

#[test]
fn an_unstripped_vmlinux_needs_no_kallsyms() {
    let file = unstripped(&[
        (TEXT, 'T', "_stext".to_owned()),
        (TEXT + 0x20, 't', ".Llabel".to_owned()),
        (TEXT + 0x10, 't', "helper".to_owned()),
        (TEXT + 0x40, 'T', "_etext".to_owned()),
    ]);
    let symbols = Symbols::from_vmlinux(&file).unwrap();
    assert_eq!((symbols.len(), symbols.source()), (3, Source::ElfSymtab));
    assert_eq!(symbols.find("helper").unwrap().kind, 't');
    assert_eq!(symbols.resolve(at(0x18)).unwrap().symbol.name, "helper");
    assert_eq!(symbols.text(), at(0)..at(0x40));
    assert!(symbols.init_text().is_empty());
}

#[test]
fn images_without_symbols_are_told_apart() {
    let parse = |file: &[u8]| Symbols::from_vmlinux(file).unwrap_err();
    assert!(matches!(parse(b"no ELF"), SymbolsError::Image(_)));
    assert!(matches!(parse(&elf(&[0; 0x4000])), SymbolsError::None));
    let only_start = unstripped(&[(TEXT, 'T', "_stext".to_owned())]);
    assert!(matches!(
        parse(&only_start),
        SymbolsError::MissingBound { name: "_etext" }
    ));
}

#[test]
fn addresses_that_cannot_be_made_sense_of_are_reported() {
    let defined = kernel(Layout::V6_1);
    let mut file = vmlinux(&defined, Layout::V6_1);
    let base = TEXT.to_le_bytes();
    let header = 0x100;
    let at = header + file[header..].windows(8).position(|w| w == base).unwrap();
    file[at..at + 8].fill(0x11);
    let error = Symbols::from_vmlinux(&file).unwrap_err();
    match error {
        SymbolsError::UnknownAddresses { count } => assert_eq!(count, defined.len()),
        other => panic!("{other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_damaged_image_never_panics(
        layout in 0..Layout::ALL.len(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let layout = Layout::ALL[layout];
        let mut file = vmlinux(&kernel(layout), layout);
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        for file in [&file[..], &file[..cut.index(file.len())]] {
            if let Ok(symbols) = Symbols::from_vmlinux(file) {
                for symbol in symbols.iter() {
                    symbols.resolve(symbol.address);
                }
            }
        }
    }

    #[test]
    fn garbage_has_no_symbols(garbage in prop::collection::vec(any::<u8>(), 0..8192)) {
        prop_assert!(Symbols::from_vmlinux(&garbage).is_err());
        prop_assert!(Symbols::from_vmlinux(&elf(&garbage)).is_err());
    }

    #[test]
    fn a_damaged_elf_symbol_table_never_panics(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut file = unstripped(&kernel(Layout::V6_15));
        let headers = file.len() - SEGMENT;
        for (at, byte) in damage {
            let at = at.index(headers);
            // The headers at the start and all behind the segment.
            let at = if at < 128 { at } else { at + SEGMENT };
            file[at] = byte;
        }
        drop(Symbols::from_vmlinux(&file));
    }
}
