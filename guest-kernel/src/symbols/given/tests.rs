use super::*;
use crate::Kernel;
use crate::symbols::synthetic::{SEGMENT, TEXT, TEXT_LEN, elf};

/// Offsets in the image: the banner, the list of exported symbols and their names.
const BANNER: usize = 0x800;
const EXPORTS: usize = 0x900;
const NAMES: usize = 0xa00;
/// Exported functions by their names and offsets.
const EXPORTED: [(&str, usize); 3] = [("one", 0x10), ("two", 0x20), ("three", 0x30)];

/// Makes an image without symbols.
fn image() -> Vec<u8> {
    let mut data = vec![0x90; TEXT_LEN as usize];
    let banner = b"Linux version 6.1.0-test (builder)\n\0";
    data[BANNER..][..banner.len()].copy_from_slice(banner);
    let mut name_at = NAMES;
    for (index, (name, offset)) in EXPORTED.into_iter().enumerate() {
        data[name_at..][..name.len()].copy_from_slice(name.as_bytes());
        data[name_at + name.len()] = 0;
        let entry = EXPORTS + index * 12;
        let mut put = |at: usize, target: usize| {
            let distance = target as i32 - at as i32;
            data[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        };
        put(entry, offset);
        put(entry + 4, name_at);
        name_at += name.len() + 1;
    }
    elf(&data)
}

/// Its symbols, by offset.
const SYMBOLS: [(usize, char, &str); 9] = [
    (0, 'T', "_text"),
    (0, 'T', "_stext"),
    (0x10, 'T', "one"),
    (0x20, 'T', "two"),
    (0x30, 't', "three"),
    (0x700, 'T', "_etext"),
    (BANNER, 'D', "linux_banner"),
    (EXPORTS, 'R', "__start___ksymtab"),
    (EXPORTS + 36, 'R', "__stop___ksymtab"),
];

/// Makes a `System.map` of symbols, changed by `change`.
fn map(change: impl Fn(&str, usize) -> usize) -> String {
    let line = |(offset, kind, name): (usize, char, &str)| {
        let address = TEXT + change(name, offset) as u64;
        format!("{address:016x} {kind} {name}\n")
    };
    SYMBOLS.into_iter().map(line).collect()
}

fn as_it_is() -> String {
    map(|_, offset| offset)
}

fn refused(file: &[u8], given: &str) -> String {
    let given = GivenSymbols::parse(given.as_bytes()).unwrap();
    Kernel::with_symbols(file, given).unwrap_err().to_string()
}

#[test]
fn a_kernel_without_symbols_has_those_that_are_given() {
    let file = image();
    assert!(Kernel::from_image(&file).is_err());
    let text = format!("{}ffffffffc0000000 t of_a_module\t[module]\n", as_it_is());
    let given = GivenSymbols::parse(text.as_bytes()).unwrap();
    let kernel = Kernel::with_symbols(&file, given).unwrap();
    let symbols = &kernel.symbols;
    assert_eq!((symbols.len(), symbols.source()), (9, Source::SystemMap));
    assert_eq!(symbols.find("three").unwrap().address.0, TEXT + 0x30);
    assert_eq!(kernel.version, "6.1.0-test (builder)");
    assert!(kernel.types.is_none());
    assert!(kernel.modules.unwrap_err().contains("BTF"));
}

#[test]
fn symbols_of_a_kernel_that_has_moved_move_but_not_those_of_a_cpu_s_variables() {
    let text = format!("0000000000001000 A variable\n{}", as_it_is());
    let given = GivenSymbols::parse(text.as_bytes())
        .unwrap()
        .moved_by(0x20_0000);
    let mut file = image();
    // The segment's virtual address.
    file[80..88].copy_from_slice(&(TEXT + 0x20_0000).to_le_bytes());
    let symbols = Kernel::with_symbols(&file, given).unwrap().symbols;
    assert_eq!(symbols.find("two").unwrap().address.0, TEXT + 0x20_0020);
    assert_eq!(symbols.find("variable").unwrap().address.0, 0x1000);
}

#[test]
fn symbols_of_another_kernel_are_refused_with_what_differs() {
    let file = image();
    let cases = [
        ("two", 0x24, "the kernel exports two at 0xffffffff81000020"),
        (
            "_text",
            0x10,
            "it says that the kernel begins at 0xffffffff81000010",
        ),
        (
            "linux_banner",
            0x810,
            "linux_banner isn't at 0xffffffff81000810",
        ),
        ("_etext", 0x20_0000, "isn't code of the kernel"),
        ("__start___ksymtab", 0x100, "is no list of exported symbols"),
    ];
    for (changed, to, why) in cases {
        let given = map(|name, offset| if name == changed { to } else { offset });
        let error = refused(&file, &given);
        assert!(error.contains(why), "{changed}: {error}");
    }
    let unbounded = as_it_is().replace("_etext", "etext");
    assert!(refused(&file, &unbounded).contains("no symbol \"_etext\""));
}

#[test]
fn files_that_are_no_symbols_are_told_apart() {
    let parse = |file: &[u8]| GivenSymbols::parse(file).unwrap_err();
    assert!(matches!(parse(&image()), GivenError::Stripped));
    assert!(matches!(parse(b"\x7fELF"), GivenError::Image(_)));
    for (file, number) in [
        ("ffffffff81000000 T\n", 1),
        ("ffffffff81000000 T _stext\nffffffff81000010 Tt one\n", 2),
        ("ffffffff81000000 T _stext\n\nxyz T one\n", 3),
        ("ffffffff81000000 T one two\n", 1),
    ] {
        let error = parse(file.as_bytes());
        assert!(
            matches!(error, GivenError::Line { line } if line == number),
            "{error}"
        );
    }
}

/// Makes a vmlinux with a note that holds this build ID.
fn with_build_id(mut file: Vec<u8>, id: [u8; 20]) -> Vec<u8> {
    let note = file.len() as u64;
    for word in [4_u32, 20, 3] {
        file.extend(word.to_le_bytes()); // n_namesz, n_descsz, n_type: NT_GNU_BUILD_ID
    }
    file.extend(b"GNU\0");
    file.extend(id);
    // A second program header, in the room before the segment.
    file[56..58].copy_from_slice(&2_u16.to_le_bytes()); // e_phnum
    let header = 64 + 56;
    assert!(header + 56 <= SEGMENT);
    file[header..header + 4].copy_from_slice(&4_u32.to_le_bytes()); // p_type: PT_NOTE
    file[header + 8..header + 16].copy_from_slice(&note.to_le_bytes()); // p_offset
    file[header + 32..header + 40].copy_from_slice(&36_u64.to_le_bytes()); // p_filesz
    file[header + 48..header + 56].copy_from_slice(&4_u64.to_le_bytes()); // p_align
    file
}

#[test]
fn a_vmlinux_of_another_build_is_refused_by_its_build_id() {
    use crate::symbols::synthetic::unstripped;

    let symbols = SYMBOLS.map(|(offset, kind, name)| (TEXT + offset as u64, kind, name.to_owned()));
    let given = |id| {
        let file = with_build_id(unstripped(&symbols), [id; 20]);
        GivenSymbols::parse(&file).unwrap()
    };
    let file = with_build_id(image(), [0xab; 20]);
    let kernel = Kernel::with_symbols(&file, given(0xab)).unwrap();
    assert_eq!(kernel.symbols.source(), Source::ElfSymtab);
    let error = Kernel::with_symbols(&file, given(0xcd)).unwrap_err();
    let (theirs, ours) = ("cd".repeat(20), "ab".repeat(20));
    let expected = format!("its build ID is {theirs}, the kernel's is {ours}");
    assert!(error.to_string().contains(&expected), "{error}");
}
