use guest_state::GuestPhysAddr;
use guest_state::testing::TestMemory;
use guest_state::x86_64::paging::PagingMode;

use super::*;
use crate::btf::synthetic::Builder;
use crate::modules::ModuleState;

/// Paging is off: addresses are their own translations, so that all fits into a little memory.
const TABLES: PageTables = PageTables {
    root: GuestPhysAddr(0),
    mode: PagingMode::Off,
    no_execute: false,
};
const MODULE: u64 = 0x1000;
const CODE: u64 = 0x2000;
const INIT_CODE: u64 = 0x3000;
const IPS: u64 = 0x4000;
const ENTRIES: u64 = 0x5000;

fn types() -> Btf {
    let mut b = Builder::new();
    let int = b.int("unsigned int", 4);
    let pointer = b.pointer(int);
    let members = [
        ("num_orcs", int, 0),
        ("orc_unwind_ip", pointer, 8),
        ("orc_unwind", pointer, 16),
    ];
    let arch = b.structure("mod_arch_specific", 24, &members);
    b.structure("module", 0x100, &[("arch", arch, 0x80)]);
    Btf::parse(&b.bytes()).unwrap()
}

fn module() -> Module {
    let range = |start| GuestVirtAddr(start)..GuestVirtAddr(start + 0x100);
    Module {
        address: GuestVirtAddr(MODULE),
        name: "ext4".to_owned(),
        state: ModuleState::Coming,
        text: range(CODE),
        init_text: range(INIT_CODE),
        functions: Default::default(),
        blacklist: Default::default(),
        exceptions: Default::default(),
        landings: Default::default(),
        is_live_patch: false,
    }
}

/// Makes a guest whose module has these values for its table.
fn memory(count: u32, ips: u64, entries: u64) -> TestMemory {
    let memory = TestMemory::new(0x6000);
    let write = |at, bytes: &[u8]| memory.write(GuestPhysAddr(at), bytes).unwrap();
    let table = [
        (CODE, OrcEntry::CALLED),
        (CODE + 0x10, call(32)),
        (INIT_CODE, call(48)),
    ];
    let halves = halves(IPS, &table);
    write(IPS, &halves.0);
    write(ENTRIES, &halves.1);
    write(MODULE + 0x80, &count.to_le_bytes());
    write(MODULE + 0x88, &ips.to_le_bytes());
    write(MODULE + 0x90, &entries.to_le_bytes());
    memory
}

fn kernel() -> Unwinder {
    Unwinder {
        layout: Some(ModuleOrcs::new(&types()).unwrap()),
        ..unwinder(Some(orc(&[(0, OrcEntry::CALLED), (0x400, END)])))
    }
}

fn find(unwinder: &Unwinder, at: u64) -> Option<i16> {
    let entry = unwinder.find(GuestVirtAddr(at))?;
    Some(entry.sp_offset)
}

#[test]
fn the_code_of_a_loaded_module_has_entries() {
    let mut unwinder = kernel();
    let memory = memory(3, IPS, ENTRIES);
    let mut module = module();
    unwinder.add_module(&memory, TABLES, &module).unwrap();
    for (at, expected) in [
        (CODE, Some(8)),
        (CODE + 0x10, Some(32)),
        (CODE + 0xff, Some(32)),
        (CODE + 0x100, None),
        (INIT_CODE, Some(48)),
        (TEXT, Some(8)),
    ] {
        assert_eq!(find(&unwinder, at), expected, "{at:#x}");
        assert_eq!(unwinder.is_text(GuestVirtAddr(at)), expected.is_some());
    }
    // Its init text is freed.
    module.init_text = GuestVirtAddr(0)..GuestVirtAddr(0);
    unwinder.add_module(&memory, TABLES, &module).unwrap();
    assert_eq!(find(&unwinder, INIT_CODE), None);
    assert_eq!(find(&unwinder, CODE), Some(8));
    unwinder.remove_module(module.address);
    assert_eq!(find(&unwinder, CODE), None);
    assert!(!unwinder.is_text(GuestVirtAddr(CODE)));
}

#[test]
fn a_trace_leads_through_modules() {
    let mut unwinder = kernel();
    let memory = memory(3, IPS, ENTRIES);
    unwinder.add_module(&memory, TABLES, &module()).unwrap();
    let words = Words::new()
        .put(STACK, &[CODE + 0x20])
        .put(STACK + 32, &[TEXT + 0x401]);
    let trace = walk(&unwinder, &words, &at(0x100, STACK, 0));
    let found: Vec<_> = trace.addresses.iter().map(|at| at.0).collect();
    assert_eq!(found, [TEXT + 0x100, CODE + 0x20, TEXT + 0x401]);
    assert_eq!((trace.end, trace.guessed), (TraceEnd::Complete, false));
}

#[test]
fn a_module_without_a_table_has_code_all_the_same() {
    for (count, ips, entries, error) in [
        (0, IPS, ENTRIES, None),
        (3, 0, ENTRIES, None),
        (3, IPS, 0, None),
        (
            3,
            0x10_0000,
            ENTRIES,
            Some("the tables of the guest's module ext4 can't be read"),
        ),
        (
            3,
            IPS,
            0x10_0000,
            Some("can't be read; it may have been unloaded"),
        ),
        (
            1 << 30,
            IPS,
            ENTRIES,
            Some("has a table of 1073741824 entries"),
        ),
    ] {
        let mut unwinder = kernel();
        let memory = memory(count, ips, entries);
        let found = unwinder.add_module(&memory, TABLES, &module());
        match (found, error) {
            (Ok(()), None) => {}
            (Err(found), Some(error)) => {
                assert!(found.to_string().contains(error), "{found}");
            }
            (found, _) => panic!("{found:?}"),
        }
        assert_eq!(find(&unwinder, CODE), None);
        assert!(unwinder.is_text(GuestVirtAddr(CODE)));
    }
}

#[test]
fn modules_of_a_kernel_with_frame_pointers_have_no_tables() {
    let mut unwinder = unwinder(None);
    let memory = memory(3, IPS, ENTRIES);
    unwinder.add_module(&memory, TABLES, &module()).unwrap();
    assert_eq!(find(&unwinder, CODE), None);
    assert!(unwinder.is_text(GuestVirtAddr(CODE)));
}

#[test]
fn what_is_in_the_modules_space_and_in_no_known_module_is_lacking() {
    const SPACE: u64 = 0xffff_ffff_c000_0000;
    let range = |start: u64| GuestVirtAddr(start)..GuestVirtAddr(start + 0x100);
    let mut unwinder = kernel();
    let lacks = |unwinder: &Unwinder, at: u64| unwinder.lacks(GuestVirtAddr(at));
    assert!(lacks(&unwinder, SPACE) && !lacks(&unwinder, TEXT) && !lacks(&unwinder, CODE));
    // A module without a table has code all the same.
    let module = Module {
        text: range(SPACE),
        ..module()
    };
    let memory = memory(0, IPS, ENTRIES);
    unwinder.add_module(&memory, TABLES, &module).unwrap();
    assert!(!lacks(&unwinder, SPACE + 0xff) && lacks(&unwinder, SPACE + 0x100));
    assert_eq!(unwinder.module_entries(), 0);
    unwinder.remove_module(module.address);
    assert!(lacks(&unwinder, SPACE));
    assert!(!super::unwinder(None).lacks(GuestVirtAddr(SPACE)));
}

#[test]
fn the_entries_of_all_modules_are_counted() {
    let mut unwinder = kernel();
    let memory = memory(3, IPS, ENTRIES);
    unwinder.add_module(&memory, TABLES, &module()).unwrap();
    assert_eq!(unwinder.module_entries(), 3);
}
