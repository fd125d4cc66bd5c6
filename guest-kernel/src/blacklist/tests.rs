use super::*;
use crate::btf::Btf;
use crate::btf::synthetic::Builder;
use crate::image::Image;
use crate::symbols::Symbols;
use crate::symbols::synthetic::{Definition, Layout, SEGMENT, TEXT, vmlinux};

/// Where the synthetic kernel's tables begin, from its start; before is its text.
const TABLES: u64 = 0x800;
const NOP5: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
const JMP8: &[u8] = &[0xeb, 0x10];
const UD2: &[u8] = &[0x0f, 0x0b];
const CALL: &[u8] = &[0xe8, 0, 0, 0, 0];
const CS_CALL: &[u8] = &[0x2e, 0xe8, 0, 0, 0, 0];

fn at(offset: u64) -> GuestVirtAddr {
    GuestVirtAddr(TEXT.wrapping_add(offset))
}

fn range(offset: u64, len: u64) -> Range<GuestVirtAddr> {
    at(offset)..at(offset.wrapping_add(len))
}

/// A kernel being put together: its symbols, and what is in its text and tables.
struct Kernel {
    symbols: Vec<Definition>,
    patches: Vec<(u64, Vec<u8>)>,
    end: u64,
}

impl Kernel {
    fn new() -> Self {
        let mut kernel = Self {
            symbols: vec![],
            patches: vec![],
            end: TABLES,
        };
        for (offset, name) in [
            (0, "_text"),
            (0, "_stext"),
            (TABLES, "_etext"),
            (0x100, "function"),
            (0x180, "function.cold"),
            (0x1c0, "functional"),
            (0x200, "another"),
        ] {
            kernel.symbol(offset, name);
        }
        kernel
    }

    fn symbol(&mut self, offset: u64, name: &str) {
        self.symbols.push((TEXT + offset, 'T', name.to_owned()));
    }

    fn code(&mut self, offset: u64, code: &[u8]) -> &mut Self {
        self.patches.push((offset, code.to_vec()));
        self
    }

    /// Adds a table; `entry` makes an entry of a place and the entry's own address, each from the
    /// start of the kernel.
    fn table(
        &mut self,
        [start, end]: [&str; 2],
        places: &[u64],
        entry: impl Fn(u64, u64) -> Vec<u8>,
    ) -> &mut Self {
        self.symbol(self.end, start);
        for place in places {
            let bytes = entry(*place, self.end);
            self.end += bytes.len() as u64;
            self.patches.push((self.end - bytes.len() as u64, bytes));
        }
        self.symbol(self.end, end);
        self.end = self.end.next_multiple_of(16) + 16;
        self
    }

    fn relative(&mut self, bounds: [&str; 2], places: &[u64], more: &[u8]) -> &mut Self {
        self.table(bounds, places, |place, own| {
            let mut entry = distance(place, own);
            entry.extend(more);
            entry
        })
    }

    fn absolute(&mut self, bounds: [&str; 2], places: &[u64]) -> &mut Self {
        self.table(bounds, places, |place, _| {
            TEXT.wrapping_add(place).to_le_bytes().to_vec()
        })
    }

    fn build(&self) -> (Vec<u8>, Symbols) {
        let mut symbols = self.symbols.clone();
        symbols.sort_by_key(|(address, ..)| *address);
        // The search for kallsyms wants some more.
        let last = TEXT + 0x1000;
        symbols.extend((0..300).map(|i| (last + i, 'd', format!("datum_{i}"))));
        let mut file = vmlinux(&symbols, Layout::V6_4);
        for (offset, bytes) in &self.patches {
            let start = SEGMENT + *offset as usize;
            file[start..start + bytes.len()].copy_from_slice(bytes);
        }
        let symbols = Symbols::from_vmlinux(&file).unwrap();
        (file, symbols)
    }

    fn read(&self) -> Result<Blacklist, BlacklistError> {
        let (file, symbols) = self.build();
        let image = Image::parse(&file).unwrap();
        ImageTables::of(&image, &symbols, None)?.blacklist()
    }

    fn entries(&self) -> Vec<BlacklistEntry> {
        self.read().unwrap().entries().collect()
    }
}

fn distance(place: u64, own: u64) -> Vec<u8> {
    (place.wrapping_sub(own) as u32).to_le_bytes().to_vec()
}

fn entry(reason: Reason, offset: u64, len: u64) -> BlacklistEntry {
    BlacklistEntry {
        range: range(offset, len),
        reason,
    }
}

#[test]
fn a_kernel_without_tables_has_no_entries() {
    let blacklist = Kernel::new().read().unwrap();
    assert!(blacklist.is_empty());
    assert_eq!(blacklist.find(range(0, 0x800)), None);
}

#[test]
fn each_table_gives_the_bytes_that_the_kernel_patches() {
    let locks = ["__smp_locks", "__smp_locks_end"];
    for (bounds, more, code, reason, len) in [
        (
            ["__start___jump_table", "__stop___jump_table"],
            &[0; 12][..],
            NOP5,
            Reason::JumpLabel,
            5,
        ),
        (
            ["__start___jump_table", "__stop___jump_table"],
            &[0; 12],
            JMP8,
            Reason::JumpLabel,
            2,
        ),
        (
            ["__start_static_call_sites", "__stop_static_call_sites"],
            &[0; 4],
            CALL,
            Reason::StaticCall,
            5,
        ),
        (locks, &[], &[0xf0, 0xff, 0x00], Reason::SmpLock, 1),
        (
            ["__retpoline_sites", "__retpoline_sites_end"],
            &[],
            CS_CALL,
            Reason::Retpoline,
            6,
        ),
        (
            ["__return_sites", "__return_sites_end"],
            &[],
            &[0xe9, 0, 0, 0, 0],
            Reason::ReturnThunk,
            5,
        ),
        (
            ["__call_sites", "__call_sites_end"],
            &[],
            CALL,
            Reason::CallThunk,
            5,
        ),
        (
            ["__ibt_endbr_seal", "__ibt_endbr_seal_end"],
            &[],
            &[0xf3, 0x0f, 0x1e, 0xfa],
            Reason::EndbrSeal,
            4,
        ),
        (
            ["__cfi_sites", "__cfi_sites_end"],
            &[],
            &[],
            Reason::Cfi,
            16,
        ),
        (
            ["__start___bug_table", "__stop___bug_table"],
            &[0; 8],
            UD2,
            Reason::Bug,
            2,
        ),
        (
            ["__start_runtime_shift_bits", "__stop_runtime_shift_bits"],
            &[],
            &[],
            Reason::RuntimeConst,
            1,
        ),
        (
            ["__start_runtime_ptr_table", "__stop_runtime_ptr_table"],
            &[],
            &[],
            Reason::RuntimeConst,
            8,
        ),
        (
            ["__alt_instructions", "__alt_instructions_end"],
            &[0, 0, 0, 0, 1, 2, 7, 9],
            &[],
            Reason::Alternative,
            7,
        ),
        (
            ["__alt_instructions", "__alt_instructions_end"],
            &[0, 0, 0, 0, 1, 2, 3, 4, 7, 9],
            &[],
            Reason::Alternative,
            7,
        ),
    ] {
        let mut kernel = Kernel::new();
        kernel.code(0x120, code).code(0x210, code);
        kernel.relative(bounds, &[0x210, 0x120], more);
        let expected = [0x120, 0x210].map(|offset| entry(reason, offset, len));
        assert_eq!(kernel.entries(), expected, "{} {more:?}", bounds[0]);
    }
}

#[test]
fn absolute_tables_are_read_and_zeros_in_them_passed_over_also_when_the_kernel_has_moved() {
    let mut kernel = Kernel::new();
    let bounds = ["__start_mcount_loc", "__stop_mcount_loc"];
    let none = 0_u64.wrapping_sub(TEXT);
    let moved = none.wrapping_add(0x13c0_0000);
    kernel.absolute(bounds, &[0x104, none, 0x200, moved]);
    let sites = [0x104, 0x200].map(|offset| entry(Reason::FtraceSite, offset, 5));
    assert_eq!(kernel.entries(), sites);
    let blacklist = kernel.read().unwrap();
    assert_eq!(
        blacklist.ftrace_site(range(0x100, 9)),
        Some(range(0x104, 5))
    );
    assert_eq!(blacklist.ftrace_site(range(0x100, 4)), None);

    let mut kernel = Kernel::new();
    let bounds = ["__parainstructions", "__parainstructions_end"];
    kernel.table(bounds, &[0x130], |place, _| {
        let mut site = TEXT.wrapping_add(place).to_le_bytes().to_vec();
        site.extend([3, 6, 0, 0, 0, 0, 0, 0]);
        site
    });
    assert_eq!(kernel.entries(), [entry(Reason::Paravirt, 0x130, 6)]);
}

#[test]
fn the_layout_of_alternatives_comes_from_btf() {
    let mut b = Builder::new();
    let byte = b.int("u8", 1);
    b.structure("alt_instr", 20, &[("instrlen", byte, 17)]);
    let btf = Btf::parse(&b.bytes()).unwrap();
    let mut more = [0; 16];
    more[13] = 3;
    let mut kernel = Kernel::new();
    kernel.relative(
        ["__alt_instructions", "__alt_instructions_end"],
        &[0x111],
        &more,
    );
    let (file, symbols) = kernel.build();
    let image = Image::parse(&file).unwrap();
    let tables = ImageTables::of(&image, &symbols, Some(&btf)).unwrap();
    let blacklist = tables.blacklist().unwrap();
    let entries: Vec<_> = blacklist.entries().collect();
    assert_eq!(entries, [entry(Reason::Alternative, 0x111, 3)]);
}

#[test]
fn functions_are_blacklisted_whole_with_what_the_compiler_made_of_them() {
    let mut kernel = Kernel::new();
    kernel.absolute(
        ["__start_kprobe_blacklist", "__stop_kprobe_blacklist"],
        &[0x100],
    );
    let parts = [(0x100, 0x80), (0x180, 0x40)];
    let parts = parts.map(|(offset, len)| entry(Reason::KprobeBlacklist, offset, len));
    assert_eq!(kernel.entries(), parts);
}

#[test]
fn regions_are_found_by_their_bounds() {
    let mut kernel = Kernel::new();
    for (offset, name) in [
        (0x300, "__noinstr_text_start"),
        (0x340, "__noinstr_text_end"),
        (0x340, "__entry_text_start"),
        (0x380, "__entry_text_end"),
        (0x400, "__kprobes_text_start"),
        (0x400, "__kprobes_text_end"),
        (0x500, "ftrace_caller"),
        (0x510, "ftrace_call"),
        (0x540, "ftrace_caller_end"),
        (0x600, "relocate_kernel"),
        (0x610, "after"),
    ] {
        kernel.symbol(offset, name);
    }
    let expected = [
        entry(Reason::Noinstr, 0x300, 0x40),
        entry(Reason::EntryText, 0x340, 0x40),
        entry(Reason::CopiedText, 0x500, 0x40),
        entry(Reason::FtraceTrampoline, 0x510, 5),
        entry(Reason::CopiedText, 0x600, 0x10),
    ];
    assert_eq!(kernel.entries(), expected);
}

#[test]
fn the_first_overlapping_place_is_found() {
    let places = [
        (0x10, 2),
        (0x20, 0x100),
        (0x30, 5),
        (0x40, 5),
        (0x120, 1),
        (0x200, 4),
    ];
    let entries = places.map(|(offset, len)| entry(Reason::Bug, offset, len));
    let blacklist = Blacklist::new(entries.to_vec()).unwrap();
    for (offset, len, found) in [
        (0, 0x10, None),
        (0, 0x11, Some(0x10)),
        (0x11, 1, Some(0x10)),
        (0x12, 0xe, None),
        (0x12, 0xf, Some(0x20)),
        (0x32, 1, Some(0x20)),
        (0x50, 1, Some(0x20)),
        (0x11f, 9, Some(0x20)),
        (0x120, 9, Some(0x120)),
        (0x121, 0xdf, None),
        (0x1ff, 3, Some(0x200)),
        (0x203, 1, Some(0x200)),
        (0x204, 1, None),
        (0x30, 0, None),
    ] {
        let start = blacklist
            .find(range(offset, len))
            .map(|entry| entry.range.start);
        assert_eq!(start, found.map(at), "{offset:#x} {len}");
        let all: Vec<_> = blacklist.overlapping(range(offset, len)).collect();
        let (from, to) = (offset, offset + len);
        let expected = places
            .iter()
            .filter(|(start, len)| *start < to && start + len > from && from < to)
            .map(|(start, len)| entry(Reason::Bug, *start, *len));
        assert!(all.into_iter().eq(expected), "{offset:#x} {len}");
    }
    assert_eq!(blacklist.find(GuestVirtAddr(0)..GuestVirtAddr(10)), None);
    assert_eq!(blacklist.find(GuestVirtAddr(!9)..GuestVirtAddr(!0)), None);
}

#[test]
fn a_malformed_table_is_named() {
    let seals = ["__ibt_endbr_seal", "__ibt_endbr_seal_end"];
    for (places, more, message) in [
        (
            &[0x100, 0xffff_0000][..],
            &[][..],
            "entry 1 of the kernel's table __ibt_endbr_seal names 0xffffffff80ff0000",
        ),
        (
            &[0x100],
            &[0],
            "__ibt_endbr_seal has 5 bytes, which is no multiple of 4",
        ),
    ] {
        let mut kernel = Kernel::new();
        kernel.relative(seals, places, more);
        let error = kernel.read().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let mut kernel = Kernel::new();
    kernel.code(0x100, &[0x06]);
    kernel.relative(["__return_sites", "__return_sites_end"], &[0x100], &[]);
    let error = kernel.read().unwrap_err().to_string();
    assert!(
        error.contains("names 0xffffffff81000100, where no instruction is"),
        "{error}"
    );

    let mut kernel = Kernel::new();
    kernel.symbol(0x900, "__call_sites_end");
    kernel.symbol(0x910, "__call_sites");
    let error = kernel.read().unwrap_err().to_string();
    assert!(
        error.contains("__call_sites (0xffffffff81000910 to 0xff"),
        "{error}"
    );
}

#[test]
fn places_too_far_apart_are_refused() {
    let entries = [0, 1 << 32].map(|offset| entry(Reason::Bug, offset, 1));
    assert!(matches!(
        Blacklist::new(entries.to_vec()),
        Err(BlacklistError::TooFar { .. })
    ));
}

#[test]
fn the_exception_table_knows_its_instructions() {
    let mut kernel = Kernel::new();
    kernel.relative(
        ["__start___ex_table", "__stop___ex_table"],
        &[0x140, 0x110],
        &[0; 8],
    );
    let (file, symbols) = kernel.build();
    let image = Image::parse(&file).unwrap();
    let tables = ImageTables::of(&image, &symbols, None).unwrap();
    let table = tables.exceptions().unwrap();
    assert!(table.iter().eq([at(0x110), at(0x140)]));
    assert!(table.contains(at(0x140)) && !table.contains(at(0x141)));
    let (file, symbols) = Kernel::new().build();
    let image = Image::parse(&file).unwrap();
    let tables = ImageTables::of(&image, &symbols, None).unwrap();
    assert!(tables.exceptions().unwrap().is_empty());
}

#[test]
fn fix_ups_and_jump_labels_say_where_execution_goes_on() {
    let mut kernel = Kernel::new();
    let to = |target: u64| {
        move |place: u64, own: u64| {
            let mut entry = distance(place, own);
            entry.extend(distance(target, own + 4));
            entry.extend([0; 8]);
            entry
        }
    };
    kernel.code(0x110, NOP5);
    kernel.table(
        ["__start___jump_table", "__stop___jump_table"],
        &[0x110],
        to(0x130),
    );
    let short = |place, own| to(0x152)(place, own)[..12].to_vec();
    kernel.table(
        ["__start___ex_table", "__stop___ex_table"],
        &[0x140, 0x144],
        short,
    );
    let (file, symbols) = kernel.build();
    let image = Image::parse(&file).unwrap();
    let tables = ImageTables::of(&image, &symbols, None).unwrap();
    let found = tables.landings().unwrap();
    assert_eq!(found.labels, [at(0x130)]);
    assert_eq!(found.fix_ups, [at(0x152), at(0x152)]);
    assert!(found.any_fix_up(at(0x150)..at(0x153)) && !found.any_fix_up(at(0x153)..at(0x160)));
    assert!(!found.any_fix_up(at(0x130)..at(0x152)));
    let (file, symbols) = Kernel::new().build();
    let image = Image::parse(&file).unwrap();
    let tables = ImageTables::of(&image, &symbols, None).unwrap();
    assert_eq!(tables.landings().unwrap(), Landings::default());
}

#[test]
fn every_reason_is_a_clause_of_its_own() {
    let texts: Vec<_> = Reason::ALL.iter().map(ToString::to_string).collect();
    for (i, text) in texts.iter().enumerate() {
        assert!(!texts[..i].contains(text), "{text}");
        assert!(
            !text.ends_with('.') && text.starts_with(char::is_lowercase),
            "{text}"
        );
    }
    assert!(Reason::ALL.is_sorted());
}
