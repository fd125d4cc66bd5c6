use guest_state::testing::TestMemory;
use guest_state::x86_64::paging::{PageTables, PagingMode};
use guest_state::{GuestMemory, GuestPhysAddr, Segment};

use super::synthetic::{BY_FTRACE, DISABLED, Kprobe, SYMBOLS, hold, reader};
use super::*;
use crate::image_map::ImageMap;
use crate::symbols::{Symbols, synthetic};

/// Where the table is.
const TABLE: u64 = 0x1000;
const MUTEX: u64 = TABLE + 0x200;
const LINKED: u64 = synthetic::TEXT;
const HANDLER: GuestVirtAddr = GuestVirtAddr(LINKED + 0x220);

struct Guest {
    memory: TestMemory,
    reader: KprobeReader,
}

impl Guest {
    fn new() -> Self {
        let mut definitions = vec![
            (LINKED, 'T', "_text".to_owned()),
            (LINKED, 'T', "_stext".to_owned()),
        ];
        definitions.extend(SYMBOLS.map(|(name, at)| (LINKED + at, 'd', name.to_owned())));
        definitions.push((LINKED + 0x800, 'T', "_etext".to_owned()));
        definitions.push((LINKED + 0x1000, 'D', "_end".to_owned()));
        let symbols = Symbols::from_elf_symtab(&synthetic::unstripped(&definitions)).unwrap();
        Self {
            memory: TestMemory::new(0x10000),
            reader: reader(&symbols),
        }
    }

    fn kprobe(&self, own: u64, list: u64, at: u64, opcode: u8) -> Kprobe<'_> {
        let memory = &self.memory;
        let kprobe = Kprobe { memory, own };
        kprobe.link(TABLE, list).on(GuestVirtAddr(at), opcode);
        kprobe
    }

    fn read(&self) -> GuestKprobes {
        let image = ImageMap::new(vec![Segment {
            virt: GuestVirtAddr(LINKED),
            phys: GuestPhysAddr(TABLE),
            len: 0x1000,
        }]);
        let tables = PageTables {
            root: GuestPhysAddr(0),
            mode: PagingMode::Off,
            no_execute: false,
        };
        self.reader.read(&self.memory, &image, Some(tables))
    }
}

#[test]
fn kprobes_of_all_lists_are_found_but_those_that_are_not_in_the_text() {
    let guest = Guest::new();
    assert_eq!(guest.read(), GuestKprobes::default());
    guest.kprobe(0x3000, 0, 0x500, 0x55);
    guest.kprobe(0x3100, 0, 0x400, 0x53).flags(DISABLED);
    guest.kprobe(0x3200, 63, 0x300, 0x90).flags(BY_FTRACE);
    guest.kprobe(0x3300, 63, 0x600, 0x90).flags(1);
    guest
        .kprobe(0x3400, 63, 0x700, 0x41)
        .jump(HANDLER, 0x9000, 7, [1, 2, 3, 4]);
    let found = guest.read();
    let at = |at| found.on(GuestVirtAddr(at)).map(|probe| probe.opcode);
    assert_eq!(found.len(), 3);
    assert_eq!(
        (at(0x500), at(0x400), at(0x700)),
        (Some(0x55), Some(0x53), Some(0x41))
    );
    assert_eq!((at(0x300), at(0x600), at(0x701)), (None, None, None));
    let jump = &found.on(GuestVirtAddr(0x700)).unwrap().jump;
    let expected = GuestJump {
        to: GuestVirtAddr(0x9000),
        len: 7,
        copied: [1, 2, 3, 4],
    };
    assert_eq!(jump.as_ref(), Some(&expected));
    let near = |from, to| {
        let found = found.overlapping(GuestVirtAddr(from)..GuestVirtAddr(to));
        found.map(|probe| probe.at.0)
    };
    assert_eq!(near(0x401, 0x500), None);
    assert_eq!(near(0x401, 0x501), Some(0x500));
    assert_eq!(
        (near(0x706, 0x707), near(0x707, 0x800)),
        (Some(0x700), None)
    );
}

#[test]
fn a_list_that_goes_round_or_leads_nowhere_ends() {
    let guest = Guest::new();
    let kprobe = guest.kprobe(0x3000, 5, 0x500, 0x55);
    kprobe.link(TABLE, 5);
    assert_eq!(guest.read().len(), 1 << 14);
    let guest = Guest::new();
    guest.kprobe(0x3000, 5, 0x500, 0x55);
    guest
        .memory
        .write(GuestPhysAddr(0x3008), &0xffff_0000_0000_u64.to_le_bytes())
        .unwrap();
    assert_eq!(guest.read().len(), 1);
    guest
        .memory
        .write(GuestPhysAddr(TABLE), &[0x7f; 512])
        .unwrap();
    assert!(guest.read().is_empty());
}

#[test]
fn a_jump_that_was_not_prepared_is_none() {
    for (handler, len) in [
        (HANDLER, 0),
        (HANDLER, 4),
        (HANDLER, u64::MAX),
        (GuestVirtAddr(5), 7),
    ] {
        let guest = Guest::new();
        guest
            .kprobe(0x3000, 1, 0x500, 0x55)
            .jump(handler, 0x9000, len, [0; 4]);
        let found = guest.read();
        let found = found.on(GuestVirtAddr(0x500)).unwrap();
        assert_eq!((&found.jump, found.range().end.0), (&None, 0x501), "{len}");
    }
}

#[test]
fn a_task_that_holds_the_mutex_is_changing_them_unless_it_is_the_worker() {
    const WORKER: u32 = 0x20;
    let guest = Guest::new();
    assert!(!guest.read().changing);
    for (task, flags, changing) in [
        (0x4000, 0, true),
        (0x4000, !WORKER, true),
        (0x4000, WORKER, false),
        (0, 0, false),
    ] {
        hold(&guest.memory, MUTEX, task, flags);
        assert_eq!(guest.read().changing, changing, "{task:#x} {flags:#x}");
    }
}

#[test]
fn text_is_read_as_it_is_without_the_guest_s_kprobes() {
    let guest = Guest::new();
    guest.kprobe(0x3000, 1, 0x102, 0x53);
    let text = |bytes: &[u8]| {
        let mut text = bytes.to_vec();
        guest.read().unmask(GuestVirtAddr(0x100), &mut text);
        text
    };
    assert_eq!(text(&[1, 0xcc, 0xcc, 0xcc]), [1, 0xcc, 0x53, 0xcc]);
    assert_eq!(text(&[1, 2, 0x90, 4]), [1, 2, 0x90, 4], "disarmed");
    assert_eq!(text(&[1, 2]), [1, 2]);
}

#[test]
fn a_jump_of_the_guest_s_is_unmasked_whole_or_in_part_in_all_its_steps() {
    let guest = Guest::new();
    let to: u64 = 0x9000;
    guest
        .kprobe(0x3000, 1, 0x102, 0x53)
        .jump(HANDLER, to, 7, [0xa, 0xb, 0xc, 0xd]);
    let by = (to as u32 - 0x107).to_le_bytes();
    let read = |start: u64, bytes: &[u8]| {
        let mut text = bytes.to_vec();
        guest.read().unmask(GuestVirtAddr(start), &mut text);
        text
    };
    let original = [1, 2, 0x53, 0xa, 0xb, 0xc, 0xd, 8];
    let with = |first: u8, tail: [u8; 4]| {
        let [a, b, c, d] = tail;
        [1, 2, first, a, b, c, d, 8]
    };
    for text in [
        with(0xe9, by),
        with(0xcc, by),
        with(0xcc, [0xa, 0xb, 0xc, 0xd]),
        original,
    ] {
        assert_eq!(read(0x100, &text), original, "{text:x?}");
        assert_eq!(read(0x104, &text[4..]), original[4..], "{text:x?}");
        assert_eq!(read(0x100, &text[..5]), original[..5], "{text:x?}");
    }
    // A jump that belongs to the function itself and leads elsewhere.
    let own = with(0xe9, [1, 0, 0, 0]);
    assert_eq!(read(0x100, &own), own);
}
