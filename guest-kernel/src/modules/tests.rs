use std::sync::Arc;

use guest_state::GuestPhysAddr;
use guest_state::x86_64::paging::{PageTables, PagingMode};
use proptest::prelude::*;

use super::synthetic::{
    CODE, DATA, Guest, INIT_CODE, LIST, MODULE, TYPES, TYPES_LIST, VERSIONS, Version, btf, types,
};
use super::*;
use crate::blacklist::{BlacklistEntry, Reason};
use crate::btf::Btf;
use crate::btf::synthetic::Builder;
use crate::symbols::Symbols;
use crate::symbols::synthetic::{TEXT, unstripped};

/// Paging is off: addresses are their own translations, so that all fits into a little memory.
const TABLES: PageTables = PageTables {
    root: GuestPhysAddr(0),
    mode: PagingMode::Off,
    no_execute: false,
};

fn reader(version: Version) -> ModuleReader {
    let mut symbols: Vec<_> = [("_stext", 0), ("_etext", 0x800)]
        .map(|(name, offset)| (TEXT + offset, 'T', name.to_owned()))
        .to_vec();
    symbols.push((LIST, 'd', "modules".to_owned()));
    symbols.push((TYPES_LIST, 'd', "btf_modules".to_owned()));
    let symbols = Symbols::from_elf_symtab(&unstripped(&symbols)).unwrap();
    ModuleReader::new(&btf(version), &symbols).unwrap()
}

impl Guest {
    fn read(&self) -> Result<Module, ModuleError> {
        reader(self.version).read(&*self.memory, TABLES, GuestVirtAddr(MODULE))
    }
}

fn range(start: u64, len: u64) -> Range<GuestVirtAddr> {
    GuestVirtAddr(start)..GuestVirtAddr(start + len)
}

#[test]
fn a_module_is_read_in_either_layout() {
    for version in VERSIONS {
        let module = Guest::new(version).read().unwrap();
        assert_eq!(
            (module.name.as_str(), module.state),
            ("ext4", ModuleState::Coming)
        );
        assert_eq!(module.text, range(CODE, 0x100));
        assert_eq!(module.init_text, range(INIT_CODE, 0x40));
        assert!(module.is_text(GuestVirtAddr(CODE + 0xff)));
        assert!(!module.is_text(GuestVirtAddr(CODE + 0x100)));
    }
}

#[test]
fn an_outline_is_a_module_without_what_takes_long_to_read() {
    for version in VERSIONS {
        let guest = Guest::new(version);
        let (reader, at) = (reader(version), GuestVirtAddr(MODULE));
        let whole = guest.read().unwrap();
        let outline = reader.outline(&*guest.memory, TABLES, at).unwrap();
        assert_eq!((&outline.name, outline.state), (&whole.name, whole.state));
        assert_eq!(
            (&outline.text, &outline.init_text),
            (&whole.text, &whole.init_text)
        );
        assert!(outline.functions.is_empty());
        let named = reader.with_functions(&*guest.memory, TABLES, at).unwrap();
        assert_eq!(named.functions, whole.functions);
    }
}

#[test]
fn functions_in_the_text_are_found_with_their_sizes() {
    let module = Guest::new(Version::V6_1).read().unwrap();
    let found: Vec<_> = module
        .functions
        .iter()
        .map(|f| (f.name.as_str(), f.address.0, f.size))
        .collect();
    let expected = [
        ("ext4_read", CODE, 0x30),
        ("ext4_write", CODE + 0x40, 0x20),
        ("same", CODE + 0x60, 0x20),
        ("same", CODE + 0x80, 0x60),
        ("__SCT__hook", CODE + 0xe0, 0x20),
        ("init_module", INIT_CODE + 0x10, 0x30),
    ];
    assert_eq!(found, expected);
    assert_eq!(module.functions.named("same").count(), 2);
    let (function, offset) = module
        .functions
        .resolve(GuestVirtAddr(CODE + 0x45))
        .unwrap();
    assert_eq!((function.name.as_str(), offset), ("ext4_write", 5));
    assert_eq!(module.functions.resolve(GuestVirtAddr(CODE + 0x30)), None);
}

#[test]
fn a_module_s_own_tables_tell_what_cannot_be_probed() {
    for version in VERSIONS {
        let guest = Guest::new(version);
        let tables = DATA + 0x1000;
        guest.pointer("ftrace_callsites", tables, 3);
        // One place in init text that has been freed, one that was taken out of the table.
        guest.put(tables, CODE);
        guest.put(tables + 8, 0x9000);
        guest.put(tables + 16, 0);
        let distances = [
            ("jump_entries", tables + 0x100, CODE + 0x10),
            ("static_call_sites", tables + 0x200, CODE + 0x20),
            ("bug_table", tables + 0x300, CODE + 0x50),
            ("extable", tables + 0x400, CODE + 0x55),
        ];
        for (name, table, place) in distances {
            guest.pointer(name, table, 1);
            guest.write(table, &(place.wrapping_sub(table) as u32).to_le_bytes());
        }
        guest.write(CODE + 0x10, &[0xeb, 0x02]);
        guest.write(CODE + 0x20, &[0xe8, 0, 0, 0, 0]);
        guest.write(CODE + 0x50, &[0x0f, 0x0b]);
        guest.pointer("kprobe_blacklist", tables + 0x500, 1);
        guest.put(tables + 0x500, CODE + 0x40);
        guest.pointer("noinstr_text_start", CODE + 0x68, 8);
        let module = guest.read().unwrap();
        let entries: Vec<_> = module.blacklist.entries().collect();
        let expected = [
            (Reason::FtraceSite, CODE, 5),
            (Reason::JumpLabel, CODE + 0x10, 2),
            (Reason::StaticCall, CODE + 0x20, 5),
            (Reason::KprobeBlacklist, CODE + 0x40, 0x20),
            (Reason::Bug, CODE + 0x50, 2),
            (Reason::Noinstr, CODE + 0x68, 8),
            (Reason::StaticCallTrampoline, CODE + 0xe0, 0x20),
        ];
        let expected = expected.map(|(reason, start, len)| BlacklistEntry {
            range: range(start, len),
            reason,
        });
        assert_eq!(entries, expected);
        assert!(module.exceptions.contains(GuestVirtAddr(CODE + 0x55)));
    }
}

#[test]
fn init_text_that_is_gone_has_no_functions() {
    for version in VERSIONS {
        let guest = Guest::new(version);
        guest.texts([(CODE, 0x100), (0, 0)]);
        guest.write(MODULE, &0_u32.to_le_bytes());
        let module = guest.read().unwrap();
        assert_eq!(module.state, ModuleState::Live);
        assert!(module.init_text.is_empty());
        assert_eq!(module.functions.named("init_module").count(), 0);
    }
}

#[test]
fn loaded_modules_are_listed() {
    let guest = Guest::new(Version::V6_12);
    let reader = reader(Version::V6_12);
    let loaded = |guest: &Guest| reader.loaded(&*guest.memory, TABLES);
    for modules in [&[][..], &[MODULE], &[0x6000, MODULE, 0x7000]] {
        guest.link(modules);
        let expected: Vec<_> = modules.iter().copied().map(GuestVirtAddr).collect();
        assert_eq!(loaded(&guest).unwrap(), expected);
    }
    let name = reader.name(&*guest.memory, TABLES, GuestVirtAddr(MODULE));
    assert_eq!(name.unwrap(), "ext4");
}

#[test]
fn a_list_that_goes_round_ends() {
    let guest = Guest::new(Version::V6_1);
    guest.put(MODULE + 8, MODULE + 8);
    let error = reader(Version::V6_1).loaded(&*guest.memory, TABLES);
    assert!(matches!(error, Err(ModuleError::Damaged { .. })));
    guest.put(MODULE + 8, 0x1_0000_0000);
    let error = reader(Version::V6_1).loaded(&*guest.memory, TABLES);
    assert!(matches!(error, Err(ModuleError::Memory { .. })));
}

#[test]
fn nonsense_is_refused() {
    let damaged = |damage: &dyn Fn(&Guest)| {
        let guest = Guest::new(Version::V6_12);
        damage(&guest);
        guest.read().unwrap_err().to_string()
    };
    for (damage, message) in [
        (
            &(|g: &Guest| g.write(MODULE, &3_u32.to_le_bytes())) as &dyn Fn(&Guest),
            "ext4 is being loaded or unloaded",
        ),
        (&|g| g.write(MODULE + 24, &[0]), "it has no name"),
        (&|g| g.write(MODULE + 24, &[b'x'; 56]), "it has no name"),
        (&|g| g.write(MODULE + 24, b"a\x1b[2J\0"), "it has no name"),
        (&|g| g.texts([(CODE, !0), (0, 0)]), "its text is too long"),
        (&|g| g.texts([(!0, 2), (0, 0)]), "its text has no end"),
        (&|g| g.texts([(0x1_0000_0000, 2), (0, 0)]), "can't be read"),
        (&|g| g.put(MODULE + 80, 0x1_0000_0000), "can't be read"),
        (
            &|g| g.write(DATA + 8, &[0xff; 4]),
            "it has too many symbols",
        ),
        (&|g| g.write(DATA + 8, &[0, 0, 1, 0]), "can't be read"),
        (
            &|g| g.pointer("extable", DATA, !0),
            "one of its tables is too long",
        ),
        (&|g| g.pointer("extable", 0x1_0000_0000, 1), "can't be read"),
    ] {
        let error = damaged(damage);
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn functions_are_found_by_names_and_patterns() {
    let module = Guest::new(Version::V6_12).read().unwrap();
    let found = |pattern| -> Vec<_> {
        let found = module.functions.matching(pattern);
        found.map(|function| function.name.as_str()).collect()
    };
    assert_eq!(found("ext4_*"), ["ext4_read", "ext4_write"]);
    assert_eq!(found("ext4_?ead"), ["ext4_read"]);
    assert_eq!(found("same"), ["same"; 2]);
    assert_eq!(found("*").len(), module.functions.len());
    let unique = |name| module.functions.is_unique(name);
    assert!(unique("ext4_read") && !unique("same") && unique("nothing"));
    for function in module.functions.iter() {
        assert!(
            module
                .functions
                .named(&function.name)
                .any(|it| it == function)
        );
    }
    assert_eq!(module.functions.named("ext4").count(), 0);
}

#[test]
fn a_module_s_types_are_read_with_its_kernel_s() {
    let guest = Guest::new(Version::V6_12);
    let kernel = types(guest.version);
    let mut b = Builder::of_module(&kernel);
    b.structure("ext4_inode", 8, &[("i_mode", 1, 4)]);
    let kernel = Arc::new(btf(guest.version));
    let read = |guest: &Guest, module| {
        let reader = reader(guest.version);
        reader.types(&*guest.memory, TABLES, GuestVirtAddr(module), &kernel)
    };
    // The memory has no list there yet.
    assert!(read(&guest, MODULE).is_err());
    guest.put(TYPES_LIST, TYPES_LIST);
    assert!(read(&guest, MODULE).unwrap().is_none());
    guest.types(MODULE, &b.bytes());
    let found = read(&guest, MODULE).unwrap().unwrap();
    assert_eq!(found.member("ext4_inode", "i_mode").unwrap().offset, 4);
    assert!(read(&guest, 0x9999).unwrap().is_none());
    let error = |guest: &Guest| read(guest, MODULE).unwrap_err().to_string();
    guest.write(TYPES + 0x100, b"no types");
    assert!(error(&guest).contains("make no sense"), "{}", error(&guest));
    guest.write(TYPES + 0x90, &u32::MAX.to_le_bytes());
    assert!(error(&guest).contains("too long"), "{}", error(&guest));
    guest.put(TYPES, TYPES);
    assert!(error(&guest).contains("no end"), "{}", error(&guest));
}

#[test]
fn a_kernel_without_modules_or_their_types_is_refused() {
    let symbols = [("_stext", 0), ("_etext", 0x800)]
        .map(|(name, offset)| (TEXT + offset, 'T', name.to_owned()));
    let symbols = Symbols::from_elf_symtab(&unstripped(&symbols)).unwrap();
    let error = ModuleReader::new(&btf(Version::V6_1), &symbols).unwrap_err();
    assert!(matches!(error, ModulesUnsupported::NoList(_)), "{error}");
    let symbols = [("_stext", 0), ("_etext", 0x800), ("modules", 0x900)]
        .map(|(name, offset)| (TEXT + offset, 'T', name.to_owned()));
    let symbols = Symbols::from_elf_symtab(&unstripped(&symbols)).unwrap();
    let mut b = Builder::new();
    b.structure("module", 8, &[]);
    let error = ModuleReader::new(&Btf::parse(&b.bytes()).unwrap(), &symbols).unwrap_err();
    assert!(matches!(error, ModulesUnsupported::Types(_)), "{error}");
}

proptest! {
    #[test]
    fn no_guest_memory_makes_it_panic(
        damage in prop::collection::vec((0..0x1400_u64, any::<u8>()), 1..40),
    ) {
        let guest = Guest::new(Version::V6_12);
        guest.pointer("bug_table", DATA + 0x1000, 2);
        guest.pointer("jump_entries", DATA + 0x1100, 2);
        for (at, byte) in damage {
            // Changes the module, or what it points at.
            let at = if at < 0x400 { MODULE + at } else { DATA + at - 0x400 };
            guest.write(at, &[byte]);
        }
        drop(guest.read());
        drop(reader(Version::V6_12).loaded(&*guest.memory, TABLES));
    }
}
